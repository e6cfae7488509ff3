#include "base/crc64.h"

#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLYNOMIAL UINT64_C(0xC96C5795D7870F42)

/* table[k][b]: what byte b does to the sum when k zero bytes follow it, so that eight bytes are one step. */
static uint64_t table[8][256];

static uint64_t times_x(uint64_t sum)
{
    return sum & 1 ? sum >> 1 ^ POLYNOMIAL : sum >> 1;
}

static void make_table(void)
{
    for (unsigned b = 0; b < 256; b++) {
        uint64_t sum = b;
        for (int bit = 0; bit < 8; bit++)
            sum = times_x(sum);
        table[0][b] = sum;
    }
    for (unsigned b = 0; b < 256; b++)
        for (int k = 1; k < 8; k++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xff];
}

static uint64_t little_endian(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Of the sum that stands in the register to that behind the bytes. */
static uint64_t by_table(uint64_t crc, const uint8_t *p, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word = crc ^ little_endian(p);
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= table[7 - i][word >> 8 * i & 0xff];
    }
    for (; bytes > 0; bytes--, p++)
        crc = table[0][(crc ^ *p) & 0xff] ^ crc >> 8;
    return crc;
}

#if defined(__x86_64__)
/* Carry-less products, 16 bytes at a time (Gopal et al.: Fast CRC Computation for Generic Polynomials Using PCLMULQDQ,
 * Intel 2009). Bits are reflected: of a word the lowest bit is the highest power, and the product of two words,
 * taken as 16 bytes, is x times that of their polynomials. 16 bytes that D bits are to follow are their first word by
 * x^(D + 64), their second by x^D, so these less one are what the words are multiplied by. */
#define WIDE 64u /* bytes, four products beside each other */

static __m128i ahead_16, ahead_64; /* by D = 128 and 512 */
static int has_products;

static uint64_t power_of_x(unsigned n)
{
    uint64_t sum = UINT64_C(1) << 63;
    while (n-- > 0)
        sum = times_x(sum);
    return sum;
}

static __m128i ahead(unsigned bits)
{
    return _mm_set_epi64x((long long)power_of_x(bits - 1), (long long)power_of_x(bits + 63));
}

static void make_products(void)
{
    ahead_16 = ahead(128);
    ahead_64 = ahead(512);
    has_products = __builtin_cpu_supports("pclmul") != 0;
}

__attribute__((target("pclmul"))) static __m128i fold(__m128i sum, __m128i by, __m128i next)
{
    __m128i first = _mm_clmulepi64_si128(sum, by, 0x00), second = _mm_clmulepi64_si128(sum, by, 0x11);
    return _mm_xor_si128(next, _mm_xor_si128(first, second));
}

static __m128i sixteen(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* WIDE bytes or more; what is left of them behind whole 16 goes by the table, as the 16 do in the end. */
__attribute__((target("pclmul"))) static uint64_t by_products(uint64_t crc, const uint8_t *p, size_t bytes)
{
    __m128i sum[4];
    uint8_t last[16];
    for (int i = 0; i < 4; i++)
        sum[i] = sixteen(p + 16 * i);
    sum[0] = _mm_xor_si128(sum[0], _mm_set_epi64x(0, (long long)crc));
    for (p += WIDE, bytes -= WIDE; bytes >= WIDE; p += WIDE, bytes -= WIDE)
        for (int i = 0; i < 4; i++)
            sum[i] = fold(sum[i], ahead_64, sixteen(p + 16 * i));
    for (int i = 1; i < 4; i++)
        sum[0] = fold(sum[0], ahead_16, sum[i]);
    for (; bytes >= 16; p += 16, bytes -= 16)
        sum[0] = fold(sum[0], ahead_16, sixteen(p));
    _mm_storeu_si128((__m128i *)(void *)last, sum[0]);
    return by_table(by_table(0, last, sizeof last), p, bytes);
}
#endif

static void prepare(void)
{
    make_table();
#if defined(__x86_64__)
    make_products();
#endif
}

uint64_t dtp_crc64(uint64_t crc, const void *data, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
#if defined(__x86_64__)
    if (has_products && bytes >= WIDE)
        return ~by_products(~crc, data, bytes);
#endif
    return ~by_table(~crc, data, bytes);
}
