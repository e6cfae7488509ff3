/* Host microseconds of a matmul in a loop over experts within one call of a library, as Transformer Engine's
 * GroupedLinear makes it (multi_stream_cublas_gemm, cublas_gemm of transformer_engine/common/gemm/cublaslt_gemm.cu):
 * descriptors, cuBLASLt's choice of an algorithm and the launch for each expert, on four streams in turn. Matrices are
 * Qwen3-30B-A3B's gate and up; of their rows "same" has 64 for each expert, "varied" 16 to 784, so that most of 1 and
 * of 8 experts are a shape that cuBLASLt has not chosen for before. Prints library_loop.csv without its first column.
 *
 * nvcc -O2 -arch=sm_90 library_loop.cu -lcublasLt -o library_loop && ./library_loop && taskset -c 3 ./library_loop */
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <vector>

enum { STREAMS = 4, PASSES = 60, WARM = 10 };
static const size_t workspace_bytes = 32 << 20;

static double now_us()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void multiply(cublasLtHandle_t handle, int m, int n, int k, bool turn_a, bool turn_b, cudaDataType_t result,
                     char *memory, int stream_index, bool adds, cudaStream_t stream)
{
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t chosen;
    int count = 0;
    float one = 1, beta = adds;
    cublasOperation_t of_a = turn_a ? CUBLAS_OP_T : CUBLAS_OP_N, of_b = turn_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, turn_a ? k : m, turn_a ? m : k, turn_a ? k : m);
    cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, turn_b ? n : k, turn_b ? k : n, turn_b ? n : k);
    cublasLtMatrixLayoutCreate(&d, result, m, n, m);
    cublasLtMatrixLayoutCreate(&c, result, m, n, m);
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &of_a, sizeof of_a);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSB, &of_b, sizeof of_b);
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                         sizeof workspace_bytes);
    cublasLtMatmulAlgoGetHeuristic(handle, op, a, b, c, d, preference, 1, &chosen, &count);
    void *x = memory, *y = memory + (512 << 20), *z = memory + (1024ull << 20),
         *work = memory + (2048ull << 20) + stream_index * workspace_bytes;
    if (count)
        cublasLtMatmul(handle, op, &one, x, a, y, b, &beta, z, c, z, d, &chosen.algo, work, workspace_bytes, stream);
    else
        puts("no algorithm");
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatmulDescDestroy(op);
}

int main()
{
    static const char *const ways[] = {"forward", "input", "weight"};
    cublasLtHandle_t handle;
    cudaStream_t stream[STREAMS];
    char *memory;
    cublasLtCreate(&handle);
    for (auto &s : stream)
        cudaStreamCreate(&s);
    cudaMalloc(&memory, 3ull << 30);
    cudaMemset(memory, 0, 3ull << 30);
    puts("rows,way,experts,least_us,median_us");
    for (int varied = 0; varied < 2; varied++)
        for (int way = 0; way < 3; way++)
            for (int experts : {1, 8, 16, 64}) {
                std::vector<double> us;
                for (int pass = 0; pass < PASSES; pass++) {
                    cudaDeviceSynchronize();
                    double begun_us = now_us();
                    for (int e = 0; e < experts; e++) {
                        int rows = varied ? 16 + 8 * ((e * 7 + pass * 13) % 97) : 64;
                        int m = way == 0 ? 1536 : 2048, n = way == 2 ? 1536 : rows,
                            k = way == 0   ? 2048
                                : way == 1 ? 1536
                                           : rows;
                        multiply(handle, m, n, k, way == 0, way == 2, way == 2 ? CUDA_R_32F : CUDA_R_16BF, memory,
                                 e % STREAMS, way == 2, stream[e % STREAMS]);
                    }
                    if (pass >= WARM)
                        us.push_back((now_us() - begun_us) / experts);
                }
                std::sort(us.begin(), us.end());
                printf("%s,%s,%d,%.2f,%.2f\n", varied ? "varied" : "same", ways[way], experts, us[0],
                       us[us.size() / 2]);
            }
}
