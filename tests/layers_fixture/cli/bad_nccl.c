  #include <nccl.h>
