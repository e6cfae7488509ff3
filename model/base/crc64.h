/* CRC-64 of ECMA-182, bits reflected as in xz: what tells a damaged block of a checkpoint from a whole one. */
#ifndef DTP_CRC64_H
#define DTP_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* Of `bytes` bytes that follow those `crc` is of; begin with 0. CRC-64/XZ of "123456789" is 995dc9bbdf1939fa. */
uint64_t dtp_crc64(uint64_t crc, const void *data, size_t bytes);

#endif
