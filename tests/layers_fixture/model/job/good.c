#include "job/job.h"
#include "runtime/megatron/habits.h"
