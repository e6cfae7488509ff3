#include "job/job.h"
