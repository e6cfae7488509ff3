/* Event files of TensorBoard, written and read back by themselves: records of TFRecord (tensorflow/core/lib/io/
 * record_writer.cc: length, its masked CRC-32C, bytes, theirs), each an Event of event.proto, of which these fields are
 * used: wall_time = 1, step = 2, file_version = 3, summary = 5 with values of tag = 1 and simple_value = 2,
 * source_metadata = 10 with the writer = 1, which is dtplan. */
#ifndef DTP_EVENT_FILE_H
#define DTP_EVENT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DTP_EVENT_VALUES 8u
#define DTP_EVENT_BYTES 1024u /* room for any record */
struct dtp_event_value {
    const char *tag; /* of at most 32 bytes */
    float value;
};

/* The record that a file begins with, and that of a step; returns its bytes. */
size_t dtp_event_file_begin(unsigned char out[DTP_EVENT_BYTES], double wall_s);
size_t dtp_event_file_step(unsigned char out[DTP_EVENT_BYTES], double wall_s, uint64_t step,
                           const struct dtp_event_value *values, size_t count);
/* How long the record is with which these `count` bytes begin; 0: it is not whole, or damaged. *step: the step that it
 * is of, 0 for the first record of a file. */
size_t dtp_event_file_read(const unsigned char *bytes, size_t count, uint64_t *step);
/* Whether these begin with a first record that dtplan wrote. */
bool dtp_event_file_own(const unsigned char *bytes, size_t count);
/* Castagnoli's CRC (RFC 3720, appendix B.4). */
uint32_t dtp_crc32c(const unsigned char *bytes, size_t count);

#endif
