/* A network plugin for NCCL whose HCAs do not exist.
 *
 * It allows tests that need HCAs on a virtual machine with GPUs and no InfiniBand: where NCCL places HCAs,
 * which GPU sends through which HCA, whether ranks with different lists connect. Data is transferred over
 * TCP on the loopback device, so speeds are meaningless.
 *
 *   HCAS           simulated HCAs: mlx5_0=0101:00:00.0,mlx5_1=0102:00:00.0
 *   HCAS_DIR       directories as in sysfs: $HCAS_DIR/<bus id>/subsystem -> …/pci
 *   NCCL_IB_HCA    those that this process uses, in the format of NCCL's InfiniBand plugin: =name:port,…
 *   HCAS_LOG       log with a line for each connection that carried data: process, local and remote HCA, bytes
 *   HCAS_WHO       name of this process in that log
 *
 * Built with the headers of NCCL's example plugin: gcc -shared -fPIC -I nccl/plugins/net/example/nccl
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net.h"

#define MAX_HCAS 16
#define REQUESTS 64

struct hca {
  char name[32];
  char path[PATH_MAX];
};

struct request {
  struct comm* comm;
  char* data; /* the caller's */
  char* message; /* the size in eight bytes, then the data */
  size_t room, size, moved;
  int used, done, cuda;
};

struct comm {
  int fd, device, sends;
  char peer[32];
  size_t bytes;
  void* stream;
  struct request requests[REQUESTS];
  unsigned head, tail; /* in the order of the requests */
};

struct handle {
  uint16_t port;
};

static struct hca hcas[MAX_HCAS];
static int count;

/* --- CUDA's driver, without its headers ------------------------------------------------------------- */
static int (*stream_create)(void**, unsigned);
static int (*stream_synchronize)(void*);
static int (*copy)(uintptr_t, uintptr_t, size_t, void*);

static ncclResult_t driver(void) {
  void* lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) return ncclSystemError;
  *(void**)&stream_create = dlsym(lib, "cuStreamCreate");
  *(void**)&stream_synchronize = dlsym(lib, "cuStreamSynchronize");
  *(void**)&copy = dlsym(lib, "cuMemcpyAsync");
  return stream_create && stream_synchronize && copy ? ncclSuccess : ncclSystemError;
}

/* In a separate stream, which waits for no kernel, since NCCL's stream waits for this copy. */
static ncclResult_t move(struct comm* comm, void* to, const void* from, size_t size, int cuda) {
  if (!cuda) {
    memcpy(to, from, size);
    return ncclSuccess;
  }
  if (size == 0) return ncclSuccess;
  if (copy((uintptr_t)to, (uintptr_t)from, size, comm->stream)) return ncclUnhandledCudaError;
  return stream_synchronize(comm->stream) ? ncclUnhandledCudaError : ncclSuccess;
}

/* --- devices ---------------------------------------------------------------------------------------- */

/* Whether NCCL_IB_HCA="=a:1,b:1" names this HCA. Without the variable all are used. */
static int wanted(const char* name) {
  const char* list = getenv("NCCL_IB_HCA");
  if (!list || !*list) return 1;
  if (*list == '=') list++;
  size_t length = strlen(name);
  for (const char* at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    if (!strncmp(at, name, length) && strchr(",:", at[length])) return 1;
  }
  return 0;
}

static ncclResult_t init(ncclDebugLogger_t log, ncclProfilerCallback_t profiler) {
  (void)log, (void)profiler;
  const char *all = getenv("HCAS"), *dir = getenv("HCAS_DIR");
  count = 0;
  if (!all || !dir || driver() != ncclSuccess) return ncclSystemError;
  char* text = strdup(all);
  char* rest = NULL;
  for (char* one = strtok_r(text, ",", &rest); one && count < MAX_HCAS; one = strtok_r(NULL, ",", &rest)) {
    char* busid = strchr(one, '=');
    if (!busid) continue;
    *busid++ = 0;
    if (!wanted(one)) continue;
    snprintf(hcas[count].name, sizeof hcas[count].name, "%s", one);
    snprintf(hcas[count].path, sizeof hcas[count].path, "%s/%s", dir, busid);
    count++;
  }
  free(text);
  return ncclSuccess;
}

static ncclResult_t devices(int* number) {
  *number = count;
  return ncclSuccess;
}

static ncclResult_t properties(int device, ncclNetProperties_v10_t* to) {
  memset(to, 0, sizeof *to);
  to->name = hcas[device].name;
  to->pciPath = hcas[device].path;
  const char* host = getenv("NCCL_HOSTID");
  for (const char* at = hcas[device].path; *at; at++) to->guid = to->guid * 31 + (unsigned char)*at;
  for (; host && *host; host++) to->guid = to->guid * 31 + (unsigned char)*host;
  to->ptrSupport = NCCL_PTR_HOST | NCCL_PTR_CUDA;
  to->speed = 400000;
  to->port = 1;
  to->maxComms = 65536;
  to->maxRecvs = 1;
  to->netDeviceType = NCCL_NET_DEVICE_HOST;
  to->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
  to->vProps.ndevs = 1;
  to->vProps.devs[0] = device;
  to->maxP2pBytes = to->maxCollBytes = 1 << 30;
  return ncclSuccess;
}

/* --- connections ------------------------------------------------------------------------------------ */

static ncclResult_t listen_(int device, void* handle, void** made) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  struct comm* comm = calloc(1, sizeof *comm);
  if (!comm) return ncclSystemError;
  comm->device = device;
  comm->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (comm->fd < 0 || bind(comm->fd, (struct sockaddr*)&at, size) || listen(comm->fd, 128) ||
      getsockname(comm->fd, (struct sockaddr*)&at, &size))
    return ncclSystemError;
  ((struct handle*)handle)->port = at.sin_port;
  *made = comm;
  return ncclSuccess;
}

static ncclResult_t connect_(int device, ncclNetCommConfig_v10_t* config, void* handle, void** made,
                             ncclNetDeviceHandle_v10_t** offload) {
  (void)config, (void)offload;
  struct sockaddr_in to = {.sin_family = AF_INET,
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                           .sin_port = ((struct handle*)handle)->port};
  struct comm* comm = calloc(1, sizeof *comm);
  if (!comm) return ncclSystemError;
  comm->device = device;
  comm->sends = 1;
  comm->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (comm->fd < 0 || connect(comm->fd, (struct sockaddr*)&to, sizeof to) ||
      write(comm->fd, hcas[device].name, sizeof hcas[device].name) != sizeof hcas[device].name ||
      fcntl(comm->fd, F_SETFL, O_NONBLOCK))
    return ncclSystemError;
  *made = comm;
  return ncclSuccess;
}

static ncclResult_t accept_(void* listening, void** made, ncclNetDeviceHandle_v10_t** offload) {
  (void)offload;
  struct comm* from = listening;
  *made = NULL;
  int fd = accept4(from->fd, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return errno == EAGAIN ? ncclSuccess : ncclSystemError;
  struct comm* comm = calloc(1, sizeof *comm);
  if (!comm) return ncclSystemError;
  comm->device = from->device;
  comm->fd = fd;
  if (recv(fd, comm->peer, sizeof comm->peer, MSG_WAITALL) != sizeof comm->peer ||
      fcntl(fd, F_SETFL, O_NONBLOCK))
    return ncclSystemError;
  *made = comm;
  return ncclSuccess;
}

/* Later calls only need the kind of memory. */
static ncclResult_t reg(void* at, void* data, size_t size, int type, void** handle) {
  (void)data, (void)size;
  struct comm* comm = at;
  if (type == NCCL_PTR_CUDA && !comm->stream && stream_create(&comm->stream, 1)) return ncclUnhandledCudaError;
  *handle = (void*)(uintptr_t)type;
  return ncclSuccess;
}

static ncclResult_t dereg(void* at, void* handle) {
  (void)at, (void)handle;
  return ncclSuccess;
}

/* --- data ------------------------------------------------------------------------------------------- */

static struct request* request(struct comm* comm, void* data, size_t size, void* memory) {
  struct request* new = &comm->requests[comm->tail % REQUESTS];
  if (new->used) return NULL;
  char* message = malloc(size + 8);
  if (!message) return NULL;
  *new = (struct request){.comm = comm, .data = data, .message = message, .room = size, .used = 1,
                          .cuda = (uintptr_t)memory == NCCL_PTR_CUDA};
  comm->tail++;
  return new;
}

static ncclResult_t isend(void* at, void* data, size_t size, int tag, void* memory, void* profiled, void** to) {
  (void)tag, (void)profiled;
  struct request* new = request(at, data, size, memory);
  *to = new;
  if (!new) return ncclSuccess;
  uint64_t head = size;
  memcpy(new->message, &head, 8);
  new->size = size;
  return move(new->comm, new->message + 8, data, size, new->cuda);
}

static ncclResult_t irecv(void* at, int n, void** data, size_t* sizes, int* tags, void** memory, void** profiled,
                          void** to) {
  (void)tags, (void)profiled;
  if (n != 1) return ncclInternalError;
  *to = request(at, data[0], sizes[0], memory[0]);
  return ncclSuccess;
}

static ncclResult_t iflush(void* at, int n, void** data, int* sizes, void** memory, void** to) {
  (void)at, (void)n, (void)data, (void)sizes, (void)memory;
  *to = NULL;
  return ncclSuccess;
}

/* Bytes that the oldest request needs before its next step: a receiver gets the size first. */
static size_t goal(const struct request* now) {
  return now->comm->sends || now->moved >= 8 ? now->size + 8 : 8;
}

/* Transfers as much as possible of the oldest requests. */
static ncclResult_t progress(struct comm* comm) {
  while (comm->head != comm->tail) {
    struct request* now = &comm->requests[comm->head % REQUESTS];
    while (now->moved < goal(now)) {
      char* at = now->message + now->moved;
      size_t rest = goal(now) - now->moved;
      ssize_t got = comm->sends ? send(comm->fd, at, rest, MSG_NOSIGNAL) : recv(comm->fd, at, rest, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
      if (got <= 0) return ncclRemoteError;
      now->moved += (size_t)got;
      if (now->moved == 8 && !comm->sends) {
        uint64_t size;
        memcpy(&size, now->message, 8);
        if (size > now->room) return ncclInternalError;
        now->size = size;
      }
    }
    comm->bytes += now->size;
    if (!comm->sends) {
      ncclResult_t moved = move(comm, now->data, now->message + 8, now->size, now->cuda);
      if (moved != ncclSuccess) return moved;
    }
    free(now->message);
    now->done = 1;
    comm->head++;
  }
  return ncclSuccess;
}

static ncclResult_t test(void* at, int* done, int* sizes) {
  struct request* asked = at;
  ncclResult_t moved = asked->done ? ncclSuccess : progress(asked->comm);
  *done = moved == ncclSuccess && asked->done;
  if (*done) {
    if (sizes) *sizes = (int)asked->size;
    asked->used = 0;
  }
  return moved;
}

/* One line in one write, since several processes share the file. */
static ncclResult_t close_(void* at) {
  struct comm* comm = at;
  const char *path = getenv("HCAS_LOG"), *who = getenv("HCAS_WHO");
  if (path && comm->bytes) {
    char line[256];
    int length = comm->sends ? snprintf(line, sizeof line, "%s sent %zu through %s\n", who ? who : "?", comm->bytes,
                                        hcas[comm->device].name)
                             : snprintf(line, sizeof line, "%s received %zu through %s from %s\n", who ? who : "?",
                                        comm->bytes, hcas[comm->device].name, comm->peer);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, line, (size_t)length) < 0) perror(path);
    if (fd >= 0) close(fd);
  }
  close(comm->fd);
  free(comm);
  return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclNet_v10_t ncclNetPlugin_v10 = {
    .name = "HCAs",
    .init = init,
    .devices = devices,
    .getProperties = properties,
    .listen = listen_,
    .connect = connect_,
    .accept = accept_,
    .regMr = reg,
    .deregMr = dereg,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .closeSend = close_,
    .closeRecv = close_,
    .closeListen = close_,
};

/* --- for NCCL before 2.27 ---------------------------------------------------------------------------- */

static ncclResult_t init_v8(ncclDebugLogger_t log) { return init(log, NULL); }

static ncclResult_t properties_v8(int device, ncclNetProperties_v8_t* to) {
  ncclNetProperties_v10_t from;
  properties(device, &from);
  *to = (ncclNetProperties_v8_t){.name = from.name, .pciPath = from.pciPath, .guid = from.guid,
                                 .ptrSupport = from.ptrSupport, .speed = from.speed, .port = from.port,
                                 .maxComms = from.maxComms, .maxRecvs = from.maxRecvs,
                                 .netDeviceType = from.netDeviceType, .netDeviceVersion = from.netDeviceVersion};
  return ncclSuccess;
}

static ncclResult_t connect_v8(int device, void* handle, void** made, ncclNetDeviceHandle_v8_t** offload) {
  return connect_(device, NULL, handle, made, offload);
}

static ncclResult_t isend_v8(void* at, void* data, int size, int tag, void* memory, void** to) {
  return isend(at, data, (size_t)size, tag, memory, NULL, to);
}

static ncclResult_t irecv_v8(void* at, int n, void** data, int* sizes, int* tags, void** memory, void** to) {
  size_t size = (size_t)sizes[0];
  return irecv(at, n, data, &size, tags, memory, NULL, to);
}

__attribute__((visibility("default"))) const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = "HCAs",
    .init = init_v8,
    .devices = devices,
    .getProperties = properties_v8,
    .listen = listen_,
    .connect = connect_v8,
    .accept = accept_,
    .regMr = reg,
    .deregMr = dereg,
    .isend = isend_v8,
    .irecv = irecv_v8,
    .iflush = iflush,
    .test = test,
    .closeSend = close_,
    .closeRecv = close_,
    .closeListen = close_,
};
