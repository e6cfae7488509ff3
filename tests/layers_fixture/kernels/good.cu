#include <cuda_bf16.h>
#include <math.h>
