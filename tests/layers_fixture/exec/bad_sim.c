#include "simulate.h"
