#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *dtp_status_text(enum dtp_status status)
{
    switch (status) {
#define DTP_STATUS_CASE(name, value, text)                                                                             \
    case DTP_##name: return text;
        DTP_STATUS_TABLE(DTP_STATUS_CASE)
#undef DTP_STATUS_CASE
    }
    return "unknown status";
}

/* Characters without a shape of their own that turn the direction of those behind them, or end a line: a name with one
 * would show as another, and change what stands beside it. */
static bool turns_or_breaks(unsigned code)
{
    return code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

size_t dtp_printable_bytes(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    static const unsigned least[] = {0, 0x20, 0xa0, 0x800, 0x10000};
    size_t length = *c < 0x80                 ? 1
                    : *c >= 0xc2 && *c < 0xe0 ? 2
                    : *c >= 0xe0 && *c < 0xf0 ? 3
                    : *c >= 0xf0 && *c < 0xf5 ? 4
                                              : 0;
    if (!length)
        return 0;
    unsigned code = length == 1 ? *c : *c & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((c[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (c[i] & 0x3fu);
    }
    bool surrogate = code >= 0xd800 && code < 0xe000;
    bool shown = code != 0x7f && !surrogate && !turns_or_breaks(code);
    return code >= least[length] && code <= 0x10ffff && shown ? length : 0;
}

size_t dtp_printable_length(const char *text)
{
    const char *c = text;
    for (size_t step; *c && (step = dtp_printable_bytes(c)) > 0;)
        c += step;
    return (size_t)(c - text);
}

void dtp_make_printable(char *text)
{
    for (text += dtp_printable_length(text); *text; text += dtp_printable_length(text))
        *text = '?';
}

/* Messages may carry text from files: what could move a terminal's cursor, or begin a line that is no message, is shown
 * as '?'. C1 controls (U+0080 to U+009F) are two bytes, the first of them C2. */
static void make_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        bool c1 = c[0] == 0xC2 && c[1] >= 0x80 && c[1] <= 0x9F;
        bool two = (c[1] & 0xc0) == 0x80, three = two && (c[2] & 0xc0) == 0x80;
        unsigned code = c[0] == 0xD8 && two     ? 0x600 | (c[1] & 0x3fu)
                        : c[0] == 0xE2 && three ? 0x2000 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu)
                                                : 0;
        bool control = (*c < 0x20 && *c != '\t') || *c == 0x7f;
        size_t length = turns_or_breaks(code) ? (c[0] == 0xD8 ? 2 : 3) : c1 ? 2 : control ? 1 : 0;
        memset(c, '?', length);
        c += length ? length - 1 : 0;
    }
}

/* `key` NULL: no key before the words. */
static void record(struct dtp_faults *faults, enum dtp_status status, const char *file, size_t line, const char *key,
                   const char *format, va_list arguments)
{
    if (!faults)
        return;
    if (status > faults->status)
        faults->status = status;
    if (faults->count++ >= DTP_FAULTS_KEPT)
        return;
    char *text = faults->text[faults->count - 1];
    bool flag = file && file[0] == '-';
    int used = 0;
    if (file && line)
        used = snprintf(text, DTP_FAULT_TEXT_BYTES, "%.200s:%zu: ", file, line);
    else if (file)
        used = snprintf(text, DTP_FAULT_TEXT_BYTES, "%.200s: ", file);
    if (used >= 0 && key && !flag)
        used += snprintf(text + used, DTP_FAULT_TEXT_BYTES - (size_t)used, "%.64s: ", key);
    if (used < 0)
        used = 0;
    int more = vsnprintf(text + used, DTP_FAULT_TEXT_BYTES - (size_t)used, format, arguments);
    if (more >= DTP_FAULT_TEXT_BYTES - used)
        memcpy(text + DTP_FAULT_TEXT_BYTES - 4, "...", 4);
    make_printable(text);
}

enum dtp_status dtp_fault(struct dtp_faults *faults, enum dtp_status status, const char *file, size_t line,
                          const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record(faults, status, file, line, NULL, format, arguments);
    va_end(arguments);
    return status;
}

enum dtp_status dtp_fault_about(struct dtp_faults *faults, enum dtp_status status, const char *file, size_t line,
                                const char *key, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record(faults, status, file, line, key, format, arguments);
    va_end(arguments);
    return status;
}
