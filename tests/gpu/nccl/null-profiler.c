/* A profiler plugin that accepts the events of a mask and does nothing, to measure the cost within NCCL.
 * RAILGATE_NULL_MASK is the mask, by default 0x46. */
#include <stdlib.h>

#include "profiler-v5.h"

static int init(void** context, uint64_t id, int* mask, const char* name, int nodes, int ranks, int rank, void* log) {
  (void)id, (void)name, (void)nodes, (void)ranks, (void)rank, (void)log;
  const char* wished = getenv("RAILGATE_NULL_MASK");
  *context = &something;
  __atomic_store_n(mask, wished ? (int)strtol(wished, NULL, 0) : 0x46, __ATOMIC_RELAXED);
  return 0;
}
static int finalize(void* context) { return (void)context, 0; }

const struct table ncclProfiler_v5 = {"null", init, idle_start, idle_stop, idle_record, finalize};
