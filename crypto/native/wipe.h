/* Secrets are cleared from memory before it is given back: heap memory by wipe_free(), the stack by
 * KERNEL, which runs a function's body in a frame of its own and clears what lay below when it has
 * returned, by whichever path, with all that the compiler has spilled there.
 */
#ifndef HEDGEROW_WIPE_H
#define HEDGEROW_WIPE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define STACK_BYTES (160 << 10) /* more than any kernel takes; tests/crypto/test_wipe.py holds it */

static void wipe(void *at, size_t n_bytes) {
  memset(at, 0, n_bytes);
  __asm__ volatile("" : : "r"(at) : "memory"); /* or the compiler would drop what nobody reads */
}

/* NULL is allowed, as for free(). */
static void wipe_free(void *at, size_t n_bytes) {
  if (at) wipe(at, n_bytes);
  free(at);
}

static __attribute__((noinline)) void clear_stack(const char *returned) {
  uint8_t below[STACK_BYTES];
  (void)returned;
  wipe(below, sizeof below);
}

#define KERNEL(type, name, parameters, arguments) KERNEL_(type, name, parameters, arguments)
#define KERNEL_(type, name, parameters, arguments)                       \
  static __attribute__((noinline)) type name##_body parameters;          \
  EXPORT type name parameters {                                          \
    __attribute__((cleanup(clear_stack), unused)) const char returned = 0; \
    return name##_body arguments;                                        \
  }                                                                      \
  static __attribute__((noinline)) type name##_body parameters

#endif
