#include "page/output_own.h"

#include "cost/digest.h"
#include "runs/run_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *begins, *ends, *words;
} kinds[DTP_OUTPUT_KIND_COUNT] = {
#define X(suffix, begins, ends, words) {begins, ends, words},
    DTP_OUTPUT_TABLE(X)
#undef X
};

/* ---- seals ------------------------------------------------------------------------------------------------------- */

#define SEAL "made by dtplan, digest %016" PRIx64
#define MOST_SEAL_BYTES 128

/* The languages of sealed files, by how a remark is written in them. */
enum language { HASH, MARKUP, PERCENT, PLAIN, PNG };

static enum language language_of(const char *path, enum dtp_output_kind kind)
{
    static const struct {
        const char *ending;
        enum language language;
    } figures[] = {{".svg", MARKUP}, {".pdf", PERCENT}, {".png", PNG}};
    size_t length = strlen(path);
    if (kind == DTP_OUTPUT_SCRIPT || kind == DTP_OUTPUT_CHART_DATA)
        return HASH;
    if (kind == DTP_OUTPUT_PAGE)
        return MARKUP;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (length > 4 && strcmp(path + length - 4, figures[i].ending) == 0)
            return figures[i].language;
    return PLAIN;
}

/* CRC-32 as PNG's chunks have it (RFC 2083, appendix 15). */
static uint32_t crc32_of(const unsigned char *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ UINT32_C(0xedb88320) : crc >> 1;
    }
    return ~crc;
}

static void put_be32(unsigned char *out, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(value >> (24 - 8 * i));
}

/* A PNG ends in an empty chunk IEND: length 0, name, sum. Before it goes a chunk of text (RFC 2083, 4.2.3). */
static const unsigned char png_end[] = {0, 0, 0, 0, 'I', 'E', 'N', 'D', 0xae, 0x42, 0x60, 0x82};

static size_t write_png_seal(const char *words, unsigned char out[MOST_SEAL_BYTES])
{
    static const char name[] = "tEXtSoftware"; /* the zero after it parts keyword and text */
    size_t length = strlen(words), name_bytes = sizeof name;
    put_be32(out, (uint32_t)(name_bytes - 4 + length));
    memcpy(out + 4, name, name_bytes);
    memcpy(out + 4 + name_bytes, words, length);
    put_be32(out + 4 + name_bytes + length, crc32_of(out + 4, name_bytes + length));
    memcpy(out + 8 + name_bytes + length, png_end, sizeof png_end);
    return 8 + name_bytes + length + sizeof png_end;
}

/* The seal of what stands before it, in as many bytes whatever that is. */
static size_t write_seal(enum language language, const char *text, size_t bytes, unsigned char out[MOST_SEAL_BYTES])
{
    static const char *const forms[] = {
        [HASH] = "# %s\n", [MARKUP] = "<!-- %s -->\n", [PERCENT] = "%% %s\n", [PLAIN] = "%s\n"};
    char words[MOST_SEAL_BYTES / 2];
    snprintf(words, sizeof words, SEAL, dtp_digest_bytes(DTP_DIGEST_START, text, bytes));
    return language == PNG ? write_png_seal(words, out)
                           : (size_t)snprintf((char *)out, MOST_SEAL_BYTES, forms[language], words);
}

static bool is_sealed(enum language language, const char *text, size_t bytes)
{
    unsigned char seal[MOST_SEAL_BYTES];
    size_t length = write_seal(language, text, 0, seal);
    if (bytes < length)
        return false;
    write_seal(language, text, bytes - length, seal);
    return memcmp(text + bytes - length, seal, length) == 0;
}

static void print_sealed(FILE *file, enum language language, const char *text, size_t bytes)
{
    unsigned char seal[MOST_SEAL_BYTES];
    size_t end = language == PNG && bytes >= sizeof png_end ? sizeof png_end : 0; /* which the seal brings */
    size_t length = write_seal(language, text, bytes - end, seal);
    fwrite(text, 1, bytes - end, file);
    fwrite(seal, 1, length, file);
}

void dtp_output_print_page(FILE *file, const char *text, size_t bytes)
{
    print_sealed(file, MARKUP, text, bytes);
}

enum dtp_status dtp_output_write_sealed(const char *path, enum dtp_output_kind kind, const char *text, size_t bytes,
                                        struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = dtp_output_open(path, &output, faults);
    if (status != DTP_OK)
        return status;
    print_sealed(output.file, language_of(path, kind), text, bytes);
    return dtp_output_close(&output, faults);
}

/* ---- what is there ----------------------------------------------------------------------------------------------- */

#define MOST_OWN_BYTES (64u << 20) /* no figure and no page of ours is that large */

/* Fields of a line of CSV, in which a comma between quotes parts nothing. */
static size_t count_fields(const char *line)
{
    size_t fields = 1;
    bool quoted = false;
    for (; *line; line++) {
        quoted = quoted != (*line == '"');
        fields += *line == ',' && !quoted;
    }
    return fields;
}

/* Of a file that begins as one of `kind`: whether it also goes on and ends so. */
static bool is_own_to_the_end(FILE *file, const char *ends)
{
    char *line = NULL;
    size_t room = 0, fields = 0;
    bool own = true, last = false;
    for (ssize_t length; own && (length = getline(&line, &room, file)) >= 0;) {
        fields = fields ? fields : count_fields(line);
        own = ends ? !last : line[length - 1] != '\n' || count_fields(line) == fields;
        last = ends && strncmp(line, ends, strlen(ends)) == 0;
    }
    free(line);
    return own && (!ends || last);
}

static bool is_own_text(FILE *file, enum dtp_output_kind kind)
{
    const char *begins = kinds[kind].begins;
    for (const char *at = begins; *at; at++)
        if (getc(file) != (unsigned char)*at)
            return false;
    rewind(file);
    return is_own_to_the_end(file, kinds[kind].ends);
}

static bool is_own_sealed(FILE *file, size_t bytes, enum language language)
{
    char *text = bytes <= MOST_OWN_BYTES ? malloc(bytes + 1) : NULL;
    bool own = text && fread(text, 1, bytes, file) == bytes && is_sealed(language, text, bytes);
    free(text);
    return own;
}

static bool is_own(FILE *file, size_t bytes, const char *path, enum dtp_output_kind kind)
{
    return kinds[kind].begins ? is_own_text(file, kind) : is_own_sealed(file, bytes, language_of(path, kind));
}

enum dtp_status dtp_output_may_replace(const char *path, enum dtp_output_kind kind, struct dtp_faults *faults)
{
    struct stat about;
    bool adds = kind == DTP_OUTPUT_ROWS || kind == DTP_OUTPUT_CHOICES || kind == DTP_OUTPUT_FOLDER;
    if (adds || dtp_output_is_special(path) || stat(path, &about) != 0 || about.st_size == 0)
        return DTP_OK;
    FILE *file = kind == DTP_OUTPUT_MACHINE ? NULL : fopen(path, "rb");
    bool own = file && is_own(file, (size_t)about.st_size, path, kind);
    if (file)
        fclose(file);
    if (own || (kind == DTP_OUTPUT_PROGRAM && dtp_output_may_replace(path, DTP_OUTPUT_PROGRAM_SET, NULL) == DTP_OK))
        return DTP_OK;
    return kind == DTP_OUTPUT_MACHINE
               ? dtp_fault(faults, DTP_BAD_INPUT, path, 0, "is there already; --force replaces it")
               : dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                           "is there already, and not a %s as dtplan wrote it: name another file, or replace it with "
                           "--force",
                           kinds[kind].words);
}
