/* JSON values that no input can make invalid: what does not exist is null, no number is ever NaN or infinite. */
#ifndef DTP_JSON_VALUE_H
#define DTP_JSON_VALUE_H

#include "base/status.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

json_t *dtp_json_real(double value);
json_t *dtp_json_whole(uint64_t value);
/* null for NULL, "" and what is not UTF-8. */
json_t *dtp_json_text(const char *text);
/* Writes the value with a line end and takes it over. Errors of the file are left on it for the caller's ferror. Twelve
 * digits: more than any prediction is worth; of what others measured 15, with which 27.3 still is 27.3. */
enum dtp_status dtp_json_dump(json_t *value, FILE *file, struct dtp_faults *faults);
enum dtp_status dtp_json_dump_exact(json_t *value, FILE *file, struct dtp_faults *faults);

#endif
