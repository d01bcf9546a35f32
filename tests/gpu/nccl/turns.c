/* Measures the cost of a profiler plugin within one process, since two runs of the same program differ by more than that cost.
 *
 * A plugin that loads another one (TURNS_PLUGIN): NCCL calls the functions of that one directly, and between two blocks of a
 * loop the functions and the mask are switched. Used by turns.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#include "profiler-v5.h"

static struct table real;
static int* mask;
static int first_mask;

static int init(void** context, uint64_t id, int* set, const char* name, int nodes, int ranks, int rank, void* log) {
  mask = set;
  int code = real.init(context, id, set, name, nodes, ranks, rank, log);
  first_mask = __atomic_load_n(set, __ATOMIC_RELAXED);
  return code;
}
static int finalize(void* context) { return real.finalize(context); }

struct table ncclProfiler_v5 = {"turns", init, idle_start, idle_stop, idle_record, finalize};

__attribute__((constructor)) static void load(void) {
  const char* path = getenv("TURNS_PLUGIN");
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  struct table* found = library ? dlsym(library, "ncclProfiler_v5") : NULL;
  if (!found) abort();
  real = *found;
}

/* The mask that the plugin requested; -1 until NCCL has called it. */
int turns_mask(void) { return mask ? first_mask : -1; }

/* Switches to the plugin's functions, or to some that do nothing. No operation may be running. */
void turns_set(int own, int events) {
  ncclProfiler_v5.start = own ? real.start : idle_start;
  ncclProfiler_v5.stop = own ? real.stop : idle_stop;
  ncclProfiler_v5.record = own ? real.record : idle_record;
  __atomic_store_n(mask, events, __ATOMIC_RELEASE);
}

struct job {
  int (*reduce)(const void*, void*, size_t, int, int, void*, void*);
  int (*begin)(void);
  int (*end)(void);
  int (*wait)(void*);
  int gpus;
  void *comms[16], *streams[16], *send[16], *receive[16];
};

/* Runs all-reduces of floats on each GPU; returns seconds, or less than 0 if one failed. */
double turns_run(struct job* job, size_t floats, long times) {
  struct timespec from, to;
  int failed = 0;
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (long time = 0; time < times; time++) {
    if (job->gpus > 1) failed |= job->begin();
    for (int gpu = 0; gpu < job->gpus; gpu++)
      failed |= job->reduce(job->send[gpu], job->receive[gpu], floats, 7, 0, job->comms[gpu], job->streams[gpu]);
    if (job->gpus > 1) failed |= job->end();
  }
  for (int gpu = 0; gpu < job->gpus; gpu++) failed |= job->wait(job->streams[gpu]);
  clock_gettime(CLOCK_MONOTONIC, &to);
  return failed ? -1.0 : (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}
