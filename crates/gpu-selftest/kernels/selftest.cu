// Kernels of railgate-gpu-selftest. `kernels/remake.sh` makes selftest.ptx and selftest-fp8.ptx of this file; the program carries
// the PTX, which the driver compiles for the card.
//
// Matrices hold small integers, so that all partial sums are exact: every card and every library must compute the same bits.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>

using namespace nvcuda;

// As in src/matrix.rs. Rows of both inputs repeat after PERIOD rows; being prime, it meets every position of a tile.
constexpr unsigned PERIOD = 61;
constexpr int TILE = 128;
constexpr int WARPS = 8;
constexpr unsigned WRONG_KEPT = 64;

__host__ __device__ inline unsigned mixed(unsigned x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

__device__ inline int element(unsigned row, unsigned k, unsigned salt, int most) {
    unsigned x = mixed((row % PERIOD) * 0x9e3779b1u + k * 0x85ebca77u + salt);
    return int(x % unsigned(2 * most + 1)) - most;
}

template <typename T> __device__ T as(int value) { return T(float(value)); }
template <> __device__ signed char as<signed char>(int value) { return (signed char)value; }
template <> __device__ double as<double>(int value) { return double(value); }
template <> __device__ float as<float>(int value) { return float(value); }

template <typename T> __device__ void fill(T* to, unsigned rows, unsigned depth, unsigned salt, int most) {
    size_t count = size_t(rows) * depth;
    for (size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x)
        to[at] = as<T>(element(unsigned(at / depth), unsigned(at % depth), salt, most));
}

// C[m][n] = sum over k of A[m][k] * B[n][k]. `plant`: number of the warp that flips `bit` of one accumulator, ~0 for none.
template <typename T, typename FRAGMENT, typename ACC, int M, int N, int K>
__device__ void gemm(const T* a, const T* b, ACC* c, unsigned columns, unsigned depth, unsigned plant, unsigned bit) {
    constexpr int ROWS = 64 / M, COLUMNS = 32 / N;
    constexpr int STEP = 64 / sizeof(T), CHUNKS = STEP / K;
    constexpr int PER_CHUNK = K * sizeof(T) / 16;
    // One chunk holds the K columns that a fragment needs, of all rows: aligned as fragments must be.
    __shared__ __align__(128) T left[CHUNKS][TILE][K], right[CHUNKS][TILE][K];
    unsigned warp = threadIdx.x / 32, row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    unsigned my_row = warp / 4 * 64, my_column = warp % 4 * 32;
    wmma::fragment<wmma::accumulator, M, N, K, ACC> sums[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) wmma::fill_fragment(sums[i][j], ACC(0));
    for (unsigned at = 0; at < depth; at += STEP) {
        for (unsigned i = threadIdx.x; i < TILE * 4; i += blockDim.x) {
            unsigned line = i / 4, part = i % 4, chunk = part / PER_CHUNK, inside = part % PER_CHUNK * (16 / sizeof(T));
            size_t from = part * (16 / sizeof(T)) + at;
            *(uint4*)&left[chunk][line][inside] = *(const uint4*)&a[size_t(row + line) * depth + from];
            *(uint4*)&right[chunk][line][inside] = *(const uint4*)&b[size_t(column + line) * depth + from];
        }
        __syncthreads();
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            wmma::fragment<wmma::matrix_a, M, N, K, FRAGMENT, wmma::row_major> of_a[ROWS];
            wmma::fragment<wmma::matrix_b, M, N, K, FRAGMENT, wmma::col_major> of_b[COLUMNS];
            for (int i = 0; i < ROWS; i++) wmma::load_matrix_sync(of_a[i], &left[chunk][my_row + i * M][0], K);
            for (int j = 0; j < COLUMNS; j++) wmma::load_matrix_sync(of_b[j], &right[chunk][my_column + j * N][0], K);
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < COLUMNS; j++) wmma::mma_sync(sums[i][j], of_a[i], of_b[j], sums[i][j]);
        }
        __syncthreads();
    }
    if ((blockIdx.y * gridDim.x + blockIdx.x) * WARPS + warp == plant && threadIdx.x % 32 == 0)
        ((unsigned*)&sums[0][0].x[0])[0] ^= 1u << bit;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            wmma::store_matrix_sync(&c[size_t(row + my_row + i * M) * columns + column + my_column + j * N], sums[i][j], columns,
                                    wmma::mem_row_major);
}

struct Wrong {
    unsigned long long at, got, want;
};

__device__ inline unsigned long long bits(float value) { return __float_as_uint(value); }
__device__ inline unsigned long long bits(int value) { return unsigned(value); }
__device__ inline unsigned long long bits(double value) { return __double_as_longlong(value); }

// As in src/matrix.rs: the sum of these over all elements is the digest.
__device__ inline unsigned long long weighed(unsigned long long bits, unsigned long long at) {
    unsigned long long x = (bits + 0x9e3779b97f4a7c15ull) * (2 * at + 1);
    return x ^ (x >> 29);
}

// Compares C with `expected`, PERIOD x PERIOD sums. found[0]: wrong elements, found[1]: digest.
template <typename ACC>
__device__ void check(const ACC* c, const int* expected, unsigned rows, unsigned columns, unsigned long long* found, Wrong* wrong) {
    unsigned long long digest = 0;
    size_t count = size_t(rows) * columns;
    for (size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x) {
        unsigned row = unsigned(at / columns), column = unsigned(at % columns);
        unsigned long long got = bits(c[at]), want = bits(ACC(expected[row % PERIOD * PERIOD + column % PERIOD]));
        digest += weighed(got, at);
        if (got != want) {
            unsigned long long place = atomicAdd(&found[0], 1ull);
            if (place < WRONG_KEPT) wrong[place] = {at, got, want};
        }
    }
    for (int lane = 16; lane; lane /= 2) digest += __shfl_down_sync(~0u, digest, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(&found[1], digest);
}

#ifndef FP8
#define TYPE(name, T, FRAGMENT, ACC, M, N, K)                                                                                       \
    extern "C" __global__ void fill_##name(T* to, unsigned rows, unsigned depth, unsigned salt, int most) {                          \
        fill(to, rows, depth, salt, most);                                                                                           \
    }                                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                                                \
        gemm_##name(const T* a, const T* b, ACC* c, unsigned columns, unsigned depth, unsigned plant, unsigned bit) {                \
        gemm<T, FRAGMENT, ACC, M, N, K>(a, b, c, columns, depth, plant, bit);                                                        \
    }
TYPE(bf16, __nv_bfloat16, __nv_bfloat16, float, 16, 16, 16)
TYPE(fp16, __half, __half, float, 16, 16, 16)
TYPE(tf32, float, wmma::precision::tf32, float, 16, 16, 8)
TYPE(int8, signed char, signed char, int, 16, 16, 16)
TYPE(fp64, double, double, double, 8, 8, 4)

#define CHECK(name, ACC)                                                                                                             \
    extern "C" __global__ void check_##name(const ACC* c, const int* expected, unsigned rows, unsigned columns,                      \
                                            unsigned long long* found, Wrong* wrong) {                                               \
        check(c, expected, rows, columns, found, wrong);                                                                             \
    }
CHECK(f32, float)
CHECK(i32, int)
CHECK(f64, double)

// Of 16 bytes each. The seed changes every bit from one pass to the next.
__device__ inline uint4 pattern(unsigned long long at, unsigned seed) {
    unsigned low = mixed(unsigned(at) ^ seed), high = mixed(unsigned(at >> 32) + low);
    return {low, ~low, high ^ 0x55555555u, low ^ high};
}

extern "C" __global__ void pattern_write(uint4* to, unsigned long long count, unsigned seed, unsigned invert) {
    for (unsigned long long at = blockIdx.x * 1ull * blockDim.x + threadIdx.x; at < count; at += gridDim.x * 1ull * blockDim.x) {
        uint4 value = pattern(at, seed);
        to[at] = {value.x ^ invert, value.y ^ invert, value.z ^ invert, value.w ^ invert};
    }
}

// found[0]: words of 8 bytes that differ.
extern "C" __global__ void pattern_check(const uint4* from, unsigned long long count, unsigned seed, unsigned invert,
                                         unsigned long long* found, Wrong* wrong) {
    for (unsigned long long at = blockIdx.x * 1ull * blockDim.x + threadIdx.x; at < count; at += gridDim.x * 1ull * blockDim.x) {
        uint4 want = pattern(at, seed), got = from[at];
        unsigned long long pairs[2][2] = {
            {(unsigned long long)(got.y) << 32 | got.x, (unsigned long long)(want.y ^ invert) << 32 | (want.x ^ invert)},
            {(unsigned long long)(got.w) << 32 | got.z, (unsigned long long)(want.w ^ invert) << 32 | (want.z ^ invert)},
        };
        for (int half = 0; half < 2; half++)
            if (pairs[half][0] != pairs[half][1]) {
                unsigned long long place = atomicAdd(&found[0], 1ull);
                if (place < WRONG_KEPT) wrong[place] = {16 * at + 8 * half, pairs[half][0], pairs[half][1]};
            }
    }
}

extern "C" __global__ void copy(const uint4* from, uint4* to, unsigned long long count) {
    for (unsigned long long at = blockIdx.x * 1ull * blockDim.x + threadIdx.x; at < count; at += gridDim.x * 1ull * blockDim.x)
        to[at] = from[at];
}

extern "C" __global__ void flip(unsigned* at, unsigned bit) { *at ^= 1u << bit; }

// One thread per multiprocessor counts its cycles against the global timer. clocks: {cycles, nanoseconds} of each block.
extern "C" __global__ void clocks(unsigned long long* clocks, unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    // From one tick of the timer to another: it counts in steps of up to a microsecond or more.
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now == begin);
    begin = now;
    long long first = clock64();
    do {
        __nanosleep(20000);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
    unsigned long long last = now;
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now == last);
    clocks[2 * blockIdx.x] = clock64() - first;
    clocks[2 * blockIdx.x + 1] = now - begin;
}
// The cycle counter of each multiprocessor and the global timer beside it: {cycles, nanoseconds} by the number of the multiprocessor. Both
// go on between kernels, so that two of these with work between them count the cycles under that work, and take nothing from it.
extern "C" __global__ void clock_now(unsigned long long* clocks, unsigned count) {
    unsigned sm;
    unsigned long long now;
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (sm >= count) return;
    clocks[2 * sm] = clock64();
    clocks[2 * sm + 1] = now;
}
#else
extern "C" __global__ void fill_fp8(__nv_fp8_e4m3* to, unsigned rows, unsigned depth, unsigned salt, int most) {
    fill(to, rows, depth, salt, most);
}

// As `gemm`, by instructions: wmma has no fp8.
extern "C" __global__ void __launch_bounds__(256)
    gemm_fp8(const unsigned char* a, const unsigned char* b, float* c, unsigned columns, unsigned depth, unsigned plant, unsigned bit) {
    constexpr int STEP = 64, LINE = STEP + 16;
    __shared__ __align__(128) unsigned char left[TILE][LINE], right[TILE][LINE];
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, part = lane % 4 * 4;
    unsigned row = blockIdx.y * TILE, column = blockIdx.x * TILE, my_row = warp / 4 * 64, my_column = warp % 4 * 32;
    float sums[4][4][4] = {};
    for (unsigned at = 0; at < depth; at += STEP) {
        for (unsigned i = threadIdx.x; i < TILE * 4; i += blockDim.x) {
            unsigned line = i / 4, inside = i % 4 * 16;
            *(uint4*)&left[line][inside] = *(const uint4*)&a[size_t(row + line) * depth + at + inside];
            *(uint4*)&right[line][inside] = *(const uint4*)&b[size_t(column + line) * depth + at + inside];
        }
        __syncthreads();
        for (int k = 0; k < STEP; k += 32)
            for (int i = 0; i < 4; i++) {
                unsigned of_a[4];
                for (int r = 0; r < 4; r++)
                    of_a[r] = *(const unsigned*)&left[my_row + i * 16 + group + r % 2 * 8][k + part + r / 2 * 16];
                for (int j = 0; j < 4; j++) {
                    const unsigned char* line = right[my_column + j * 8 + group];
                    unsigned b0 = *(const unsigned*)&line[k + part], b1 = *(const unsigned*)&line[k + part + 16];
                    float* sum = sums[i][j];
                    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                                 "{%0,%1,%2,%3};"
                                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                                 : "r"(of_a[0]), "r"(of_a[1]), "r"(of_a[2]), "r"(of_a[3]), "r"(b0), "r"(b1));
                }
            }
        __syncthreads();
    }
    if ((blockIdx.y * gridDim.x + blockIdx.x) * WARPS + warp == plant && lane == 0)
        sums[0][0][0] = __uint_as_float(__float_as_uint(sums[0][0][0]) ^ 1u << bit);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            for (int r = 0; r < 4; r++)
                c[size_t(row + my_row + i * 16 + group + r / 2 * 8) * columns + column + my_column + j * 8 + lane % 4 * 2 + r % 2] =
                    sums[i][j][r];
}
#endif
