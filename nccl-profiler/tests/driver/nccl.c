/* What the plugin sees of NCCL's library: its release, its logger; and who allocates while it is not to. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

int ncclGetVersion(int* out) {
  const char* said = getenv("RAILGATE_TEST_NCCL");
  *out = said ? atoi(said) : 0;
  return 0;
}

void playedLog(int level, unsigned long flags, const char* file, int line, const char* format, ...) {
  (void)file, (void)line;
  va_list rest;
  va_start(rest, format);
  printf("> %d %#lx ", level, flags);
  vprintf(format, rest);
  printf("\n");
  va_end(rest);
}

/* Of the thread that asks. */
static __thread int watched;
static __thread long allocations;

void playedWatch(int on) { watched = on; }
long playedAllocations(void) { return allocations; }

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) { return allocations += watched, __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return allocations += watched, __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return allocations += watched, __libc_realloc(old, size); }
void* memalign(size_t align, size_t size) { return allocations += watched, __libc_memalign(align, size); }
int posix_memalign(void** out, size_t align, size_t size) {
  allocations += watched;
  *out = __libc_memalign(align, size);
  return *out ? 0 : 12;
}
