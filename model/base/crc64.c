#include "base/crc64.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL UINT64_C(0xC96C5795D7870F42)

/* table[k][b]: what byte b does to the sum when k zero bytes follow it, so that eight bytes are one step. */
static uint64_t table[8][256];

static void make_table(void)
{
    for (unsigned b = 0; b < 256; b++) {
        uint64_t sum = b;
        for (int bit = 0; bit < 8; bit++)
            sum = sum & 1 ? sum >> 1 ^ POLYNOMIAL : sum >> 1;
        table[0][b] = sum;
    }
    for (unsigned b = 0; b < 256; b++)
        for (int k = 1; k < 8; k++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xff];
}

static uint64_t little_endian(const uint8_t *p)
{
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--)
        word = word << 8 | p[i];
    return word;
}

uint64_t dtp_crc64(uint64_t crc, const void *data, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint8_t *p = data;
    pthread_once(&once, make_table);
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word = crc ^ little_endian(p);
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= table[7 - i][word >> 8 * i & 0xff];
    }
    for (; bytes > 0; bytes--, p++)
        crc = table[0][(crc ^ *p) & 0xff] ^ crc >> 8;
    return ~crc;
}
