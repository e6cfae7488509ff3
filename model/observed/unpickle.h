/* A pickle as JSON values, nothing executed.
 *
 * Python's pickle is a program of a stack machine (Lib/pickletools.py documents its opcodes). Of those the ones are
 * obeyed that make numbers, texts, lists, tuples (as arrays) and dictionaries with texts as keys (as objects), and that
 * name what was made before. Opcodes that import, call or build objects (GLOBAL, STACK_GLOBAL, REDUCE, BUILD, INST,
 * OBJ, NEWOBJ, EXT, persistent ids) and all others are refused with their offset. */
#ifndef DTP_UNPICKLE_H
#define DTP_UNPICKLE_H

#include "base/status.h"

#include <jansson.h>

/* Caller decrefs *out. No value contains itself, and none is nested deeper than DTP_UNPICKLE_MOST_DEPTH; one value may
 * stand in many places. */
#define DTP_UNPICKLE_MOST_DEPTH 32
enum dtp_status dtp_unpickle(const char *path, const unsigned char *bytes, size_t count, json_t **out,
                             struct dtp_faults *faults);

#endif
