#include "data/data_format.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define NUMPY                                                                                                          \
    "write its tokens raw: python -c \"import sys, numpy; numpy.load(sys.argv[1]).astype('uint16').tofile(sys."        \
    "argv[2])\" IN.npy OUT.u16 (uint32 and .u32 for vocabularies above 65536)"
#define TOKENISE "take the text out of it and tokenise it to raw uint16 (.u16) or uint32 (.u32), or train on the text"
#define UNPACK "unpack it first"

/* From each format's specification; RFC 1952 for gzip, whose third byte is the only method there is and whose fourth
 * has no flag above bit 4. */
static const struct {
    struct dtp_data_format format;
    const char *magic;
    size_t bytes;
} formats[] = {
    {{"a NumPy array", NUMPY}, "\x93NUMPY", 6},
    {{"a Parquet table", TOKENISE}, "PAR1", 4},
    {{"an Arrow file", TOKENISE}, "ARROW1\0\0", 8},
    {{"an HDF5 file", TOKENISE}, "\x89HDF\r\n\x1a\n", 8},
    {{"compressed by gzip", UNPACK ": gunzip"}, "\x1f\x8b\x08", 3},
    {{"compressed by zstd", UNPACK ": unzstd"}, "\x28\xb5\x2f\xfd", 4},
    {{"compressed by xz", UNPACK ": unxz"},
     "\xfd"
     "7zXZ\0",
     6},
    {{"compressed by bzip2", UNPACK ": bunzip2"}, "BZh91AY&SY", 10},
    {{"a zip archive, as of NumPy's .npz and PyTorch's .pt", UNPACK ", then write its tokens raw"}, "PK\3\4", 4},
};
static const struct dtp_data_format safetensors = {"a safetensors file",
                                                   "write its tokens raw as uint16 (.u16) or uint32 (.u32)"};

/* Eight bytes of a header's length, then the header, a JSON object (github.com/huggingface/safetensors, README). */
static bool is_safetensors(const uint8_t *data, size_t bytes)
{
    uint64_t header = 0;
    for (int i = 7; bytes > 10 && i >= 0; i--)
        header = header << 8 | data[i];
    return header >= 2 && header <= bytes - 8 && data[8] == '{' && (data[9] == '"' || data[9] == '}' || data[9] == ' ');
}

static bool is_gzip_flags(const uint8_t *data)
{
    return data[0] != 0x1f || data[3] < 0x20;
}

const struct dtp_data_format *dtp_data_format_of(const void *data, size_t bytes)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (bytes > formats[i].bytes && memcmp(data, formats[i].magic, formats[i].bytes) == 0 && is_gzip_flags(data))
            return &formats[i].format;
    return is_safetensors(data, bytes) ? &safetensors : NULL;
}
