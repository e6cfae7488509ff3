#include <nccl.h>
#include <cublasLt.h>
#include <cudnn.h>
#include <cuda_runtime.h>
