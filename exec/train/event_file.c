#include "train/event_file.h"

#include <string.h>

/* ---- records ----------------------------------------------------------------------------------------------------- */

uint32_t dtp_crc32c(const unsigned char *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0); /* the polynomial, its bits reversed */
    }
    return ~crc;
}

/* So that a CRC of bytes that hold a CRC says something (mask_delta of tensorflow/core/lib/hash/crc32c.h). */
static uint32_t masked(const unsigned char *bytes, size_t count)
{
    uint32_t crc = dtp_crc32c(bytes, count);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static void put(unsigned char *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *from, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

#define HEAD 12u /* length and its CRC */
#define TAIL 4u

/* Around `length` bytes that stand behind the head. */
static size_t seal(unsigned char *out, size_t length)
{
    put(out, length, 8);
    put(out + 8, masked(out, 8), 4);
    put(out + HEAD + length, masked(out + HEAD, length), 4);
    return HEAD + length + TAIL;
}

/* ---- fields of protocol buffers: a key of number and wire type, then the value -------------------------------------
 */

enum wire { VARINT = 0, EIGHT_BYTES = 1, DELIMITED = 2, FOUR_BYTES = 5 };

static size_t put_varint(unsigned char *out, uint64_t value)
{
    size_t bytes = 0;
    for (; value >= 0x80; value >>= 7)
        out[bytes++] = (unsigned char)(value | 0x80);
    out[bytes++] = (unsigned char)value;
    return bytes;
}

static size_t put_key(unsigned char *out, uint32_t field, enum wire wire)
{
    return put_varint(out, field << 3 | (uint32_t)wire);
}

static size_t put_bytes(unsigned char *out, uint32_t field, const void *bytes, size_t count)
{
    size_t at = put_key(out, field, DELIMITED);
    at += put_varint(out + at, count);
    memcpy(out + at, bytes, count);
    return at + count;
}

static size_t put_time(unsigned char *out, double wall_s)
{
    uint64_t bits;
    memcpy(&bits, &wall_s, sizeof bits);
    size_t at = put_key(out, 1, EIGHT_BYTES);
    put(out + at, bits, 8);
    return at + 8;
}

static size_t put_value(unsigned char *out, const struct dtp_event_value *value)
{
    uint32_t bits;
    memcpy(&bits, &value->value, sizeof bits);
    size_t at = put_bytes(out, 1, value->tag, strnlen(value->tag, 32));
    at += put_key(out + at, 2, FOUR_BYTES);
    put(out + at, bits, 4);
    return at + 4;
}

/* The value of source_metadata: writer, field 1, of 6 bytes. */
static const unsigned char writer[] = {1 << 3 | DELIMITED, 6, 'd', 't', 'p', 'l', 'a', 'n'};

/* ---- events ------------------------------------------------------------------------------------------------------ */

size_t dtp_event_file_begin(unsigned char out[DTP_EVENT_BYTES], double wall_s)
{
    static const char version[] = "brain.Event:2";
    size_t at = HEAD;
    at += put_time(out + at, wall_s);
    at += put_bytes(out + at, 3, version, sizeof version - 1);
    at += put_bytes(out + at, 10, writer, sizeof writer);
    return seal(out, at - HEAD);
}

bool dtp_event_file_own(const unsigned char *bytes, size_t count)
{
    uint64_t step;
    size_t record = dtp_event_file_read(bytes, count, &step);
    return record > TAIL + sizeof writer && memcmp(bytes + record - TAIL - sizeof writer, writer, sizeof writer) == 0;
}

size_t dtp_event_file_step(unsigned char out[DTP_EVENT_BYTES], double wall_s, uint64_t step,
                           const struct dtp_event_value *values, size_t count)
{
    unsigned char summary[DTP_EVENT_VALUES * 48], value[48];
    size_t bytes = 0, at = HEAD;
    for (size_t i = 0; i < count && i < DTP_EVENT_VALUES; i++)
        bytes += put_bytes(summary + bytes, 1, value, put_value(value, &values[i]));
    at += put_time(out + at, wall_s);
    at += put_key(out + at, 2, VARINT);
    at += put_varint(out + at, step);
    at += put_bytes(out + at, 5, summary, bytes);
    return seal(out, at - HEAD);
}

/* ---- reading back: as far as a file is to be gone on with -----------------------------------------------------------
 */

static size_t get_varint(const unsigned char *bytes, size_t count, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < count && i < 10; i++) {
        *value |= (uint64_t)(bytes[i] & 0x7F) << 7 * i;
        if (!(bytes[i] & 0x80))
            return i + 1;
    }
    return 0;
}

/* Bytes of the value behind a key; 0: there is none that is whole. */
static size_t value_bytes(const unsigned char *bytes, size_t count, uint64_t key, uint64_t *value)
{
    size_t taken = 0;
    switch (key & 7) {
    case VARINT: return get_varint(bytes, count, value);
    case EIGHT_BYTES: return count >= 8 ? 8 : 0;
    case FOUR_BYTES: return count >= 4 ? 4 : 0;
    case DELIMITED:
        taken = get_varint(bytes, count, value);
        return taken && *value <= count - taken ? taken + (size_t)*value : 0;
    default: return 0;
    }
}

size_t dtp_event_file_read(const unsigned char *bytes, size_t count, uint64_t *step)
{
    *step = 0;
    if (count < HEAD + TAIL || get(bytes + 8, 4) != masked(bytes, 8))
        return 0;
    uint64_t length = get(bytes, 8), key, value = 0;
    if (length > count - HEAD - TAIL || get(bytes + HEAD + length, 4) != masked(bytes + HEAD, length))
        return 0;
    const unsigned char *at = bytes + HEAD, *end = at + length;
    while (at < end) {
        size_t of_key = get_varint(at, (size_t)(end - at), &key);
        size_t taken = of_key ? value_bytes(at + of_key, (size_t)(end - at) - of_key, key, &value) : 0;
        if (!taken)
            return 0;
        if (key == (2 << 3 | VARINT))
            *step = value;
        at += of_key + taken;
    }
    return HEAD + (size_t)length + TAIL;
}
