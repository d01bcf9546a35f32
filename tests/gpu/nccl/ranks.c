/* One rank of an all-reduce in a process of its own, without MPI: the processes exchange NCCL's id in a file.
 *
 *   ranks RANK RANKS GPU FILE MEBIBYTES
 *   ranks all GPUS              one process for all GPUs, which only tests that NCCL initialises
 *
 * Exit code 0: the sum is right; otherwise NCCL's error code. Only old functions of NCCL are used, so that it
 * runs with an old libnccl.so.2.
 */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUDA(call)                                                                   \
  do {                                                                               \
    cudaError_t got = (call);                                                        \
    if (got) return fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(got)), 90; \
  } while (0)
#define NCCL(call)                                                                   \
  do {                                                                               \
    ncclResult_t got = (call);                                                       \
    if (got) return fprintf(stderr, "%s: %s\n", #call, ncclGetErrorString(got)), got; \
  } while (0)

static int meet(int rank, const char* path, ncclUniqueId* id) {
  char draft[512];
  snprintf(draft, sizeof draft, "%s.draft", path);
  if (rank == 0) {
    FILE* file = fopen(draft, "w");
    if (!file || fwrite(id, sizeof *id, 1, file) != 1 || fclose(file) || rename(draft, path)) return 91;
    return 0;
  }
  for (int tries = 0; tries < 600; tries++, usleep(100000)) {
    FILE* file = fopen(path, "r");
    if (!file) continue;
    int whole = fread(id, sizeof *id, 1, file) == 1;
    fclose(file);
    return whole ? 0 : 92;
  }
  return 93;
}

static int all(int gpus) {
  ncclComm_t comms[64];
  if (gpus < 1 || gpus > 64) return 94;
  NCCL(ncclCommInitAll(comms, gpus, NULL));
  for (int gpu = 0; gpu < gpus; gpu++) NCCL(ncclCommDestroy(comms[gpu]));
  return 0;
}

int main(int count, char** words) {
  if (count == 3 && !strcmp(words[1], "all")) return all(atoi(words[2]));
  if (count != 6) return 94;
  int rank = atoi(words[1]), ranks = atoi(words[2]), gpu = atoi(words[3]);
  size_t floats = (size_t)atoi(words[5]) * 1024 * 1024 / sizeof(float);
  ncclUniqueId id;
  if (rank == 0) NCCL(ncclGetUniqueId(&id));
  int met = meet(rank, words[4], &id);
  if (met) return met;

  ncclComm_t comm;
  cudaStream_t stream;
  float *data, *host = malloc(floats * sizeof(float));
  CUDA(cudaSetDevice(gpu));
  NCCL(ncclCommInitRank(&comm, ranks, id, rank));
  CUDA(cudaMalloc((void**)&data, floats * sizeof(float)));
  CUDA(cudaStreamCreate(&stream));
  for (size_t at = 0; at < floats; at++) host[at] = (float)(rank + 1 + at % 7);
  CUDA(cudaMemcpy(data, host, floats * sizeof(float), cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(data, data, floats, ncclFloat, ncclSum, comm, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemcpy(host, data, floats * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t at = 0; at < floats; at++) {
    float want = (float)(ranks * (ranks + 1) / 2 + ranks * (int)(at % 7));
    if (host[at] != want) return fprintf(stderr, "rank %d: [%zu] is %f, not %f\n", rank, at, host[at], want), 95;
  }
  NCCL(ncclCommDestroy(comm));
  printf("rank %d: the sum is right\n", rank);
  return 0;
}
