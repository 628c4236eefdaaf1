/* All kernels of one backend. Included once for each backend, after curve_field.h. */

#include "curve_points.h"

#include "curve_ristretto.h"

#include "curve_intersection.h"

#include "curve_elgamal.h"

#include "curve_logarithm.h"

#undef ge
#undef niels
#undef cached
