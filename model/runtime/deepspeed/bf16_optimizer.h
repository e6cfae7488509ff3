/* What gradients of BF16_Optimizer move through memory, bytes an element: for the step program and for formulas. */
#ifndef DTP_BF16_OPTIMIZER_H
#define DTP_BF16_OPTIMIZER_H

#define DTP_BF16_ZERO_BYTES 2u                  /* before each backward */
#define DTP_BF16_ADD_BYTES (2u + 2 + 2)         /* autograd adds what it made to what stands */
#define DTP_BF16_SUM_BYTES (2u + 4 + 4 + 4 + 4) /* a cast, and the sum read, added to and written */
#define DTP_BF16_STEP_BYTES (4u + 4)            /* the norm, zeros */

#endif
