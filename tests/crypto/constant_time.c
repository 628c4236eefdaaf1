/* Runs one kernel of a library on inputs that valgrind holds to be undefined: memcheck reports each
   branch and each address that depends on them. Arguments: library, kernel, path. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/memcheck.h>

#define N 9 /* elements: one vector of eight lanes and a part of another */

static void fill(uint8_t *at, size_t n_bytes) {
    uint32_t x = 2463534242u;
    for (size_t k = 0; k < n_bytes; k++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        at[k] = (uint8_t)x;
    }
}

int main(int n_arguments, char **arguments) {
    static uint8_t in[N * 192], out[N * 192], scalar[32];
    char name[64];
    if (n_arguments != 4 || !RUNNING_ON_VALGRIND) return 2;
    void *library = dlopen(arguments[1], RTLD_NOW);
    snprintf(name, sizeof name, "curve_%s_%s", arguments[2], arguments[3]);
    void *kernel = library ? dlsym(library, name) : NULL;
    if (kernel == NULL) return 3;
    fill(in, sizeof in);
    fill(scalar, sizeof scalar);
    for (int k = 0; k < N; k++) in[32 * k + 31] &= 127; /* below 2^255 */
    VALGRIND_MAKE_MEM_UNDEFINED(in, sizeof in);
    VALGRIND_MAKE_MEM_UNDEFINED(scalar, sizeof scalar);
    int64_t (*of_two)(uint8_t *, int64_t, const void *) = NULL;
    int64_t (*of_scalar)(uint8_t *, int64_t, const uint8_t *, const uint8_t *) = NULL;
    if (strcmp(arguments[2], "x25519") == 0) {
        memcpy(&of_scalar, &kernel, sizeof kernel);
        of_scalar(out, N, in, scalar);
    } else {
        memcpy(&of_two, &kernel, sizeof kernel);
        of_two(out, N, in);
    }
    return VALGRIND_CHECK_MEM_IS_DEFINED(out, 32) ? 0 : 4; /* what comes out is of the secret */
}
