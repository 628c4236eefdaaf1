/* All kernels of one backend. Included once for each backend, after curve_field.h. */

#include "curve_points.h"

#include "curve_ristretto.h"

#include "curve_intersection.h"

#include "curve_elgamal.h"

#include "curve_logarithm.h"

static const curve_kernels FN(kernels) = {
    FN(x25519), FN(map_to_curve), FN(decode),      FN(encode),     FN(sum_rows),   FN(combine),
    FN(encrypt), FN(rerandomise), FN(fixed_table), FN(decrypt),    FN(log_table), FN(log_steps),
    FN(log_solve),
};

#undef ge
#undef niels
#undef cached
