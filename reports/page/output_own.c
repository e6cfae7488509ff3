#include "page/output_own.h"

#include "cost/digest.h"
#include "runs/run_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *begins, *words;
} kinds[DTP_OUTPUT_KIND_COUNT] = {
#define X(suffix, begins, words) {begins, words},
    DTP_OUTPUT_TABLE(X)
#undef X
};

/* ---- seals ------------------------------------------------------------------------------------------------------- */

#define SEAL "made by dtplan, digest %016" PRIx64
#define MOST_SEAL_BYTES 128

/* The languages of sealed files, by how a remark is written in them. */
enum language { HASH, MARKUP, PERCENT, PLAIN, PNG, TRACE_EVENTS };

static enum language language_of(const char *path, enum dtp_output_kind kind)
{
    static const struct {
        const char *ending;
        enum language language;
    } figures[] = {{".svg", MARKUP}, {".pdf", PERCENT}, {".png", PNG}};
    size_t length = strlen(path);
    if (kind == DTP_OUTPUT_SCRIPT || kind == DTP_OUTPUT_CHART_DATA || kind == DTP_OUTPUT_PROGRAM)
        return HASH;
    if (kind == DTP_OUTPUT_TRACE)
        return TRACE_EVENTS;
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

/* The end of a trace, before which the format has room for what no viewer reads ("otherData" of the Trace Event Format,
 * "JSON Object Format"). */
static const char trace_end[] = "]}\n";

/* How many bytes of a file's end the seal brings itself. */
static size_t end_bytes(enum language language)
{
    return language == PNG ? sizeof png_end : language == TRACE_EVENTS ? strlen(trace_end) : 0;
}

/* The seal of what has that digest, in as many bytes whatever it is. */
static size_t write_seal(enum language language, uint64_t digest, unsigned char out[MOST_SEAL_BYTES])
{
    static const char *const forms[] = {[HASH] = "# %s\n",
                                        [MARKUP] = "<!-- %s -->\n",
                                        [PERCENT] = "%% %s\n",
                                        [PLAIN] = "%s\n",
                                        [TRACE_EVENTS] = "],\"otherData\":{\"seal\":\"%s\"}}\n"};
    char words[MOST_SEAL_BYTES / 2];
    snprintf(words, sizeof words, SEAL, digest);
    return language == PNG ? write_png_seal(words, out)
                           : (size_t)snprintf((char *)out, MOST_SEAL_BYTES, forms[language], words);
}

/* Of the next bytes of a file; false: there are not as many. */
static bool digest_of(FILE *file, size_t bytes, uint64_t *digest)
{
    char part[1 << 16];
    *digest = DTP_DIGEST_START;
    while (bytes) {
        size_t wanted = bytes < sizeof part ? bytes : sizeof part;
        if (fread(part, 1, wanted, file) != wanted)
            return false;
        *digest = dtp_digest_bytes(*digest, part, wanted);
        bytes -= wanted;
    }
    return true;
}

static void print_sealed(FILE *file, enum language language, const char *text, size_t bytes)
{
    unsigned char seal[MOST_SEAL_BYTES];
    size_t end = bytes >= end_bytes(language) ? end_bytes(language) : 0;
    size_t length = write_seal(language, dtp_digest_bytes(DTP_DIGEST_START, text, bytes - end), seal);
    fwrite(text, 1, bytes - end, file);
    fwrite(seal, 1, length, file);
}

/* Over the end of what was written, which is read again: it may be larger than memory. */
static enum dtp_status seal(struct dtp_output_file *output, enum language language, struct dtp_faults *faults)
{
    unsigned char words[MOST_SEAL_BYTES];
    uint64_t digest;
    off_t bytes = fflush(output->file) == 0 ? ftello(output->file) : -1, end = (off_t)end_bytes(language);
    if (bytes < end) /* flushing once more would succeed, for nothing is left */
        return dtp_fault(faults, DTP_ENVIRONMENT, output->path, 0, "cannot be written: %s", strerror(errno));
    FILE *again = fopen(output->temporary, "rb");
    bool read = again && digest_of(again, (size_t)(bytes - end), &digest);
    if (again)
        fclose(again);
    if (!read)
        return dtp_fault(faults, DTP_ENVIRONMENT, output->path, 0, "cannot be read again to be sealed");
    size_t length = write_seal(language, digest, words);
    if (fseeko(output->file, bytes - end, SEEK_SET) != 0 || fwrite(words, 1, length, output->file) != length)
        return dtp_fault(faults, DTP_ENVIRONMENT, output->path, 0, "cannot be sealed");
    return DTP_OK;
}

enum dtp_status dtp_output_end_sealed(struct dtp_output_file *output, enum dtp_output_kind kind,
                                      enum dtp_status written, struct dtp_faults *faults)
{
    if (written == DTP_OK && output->temporary)
        written = seal(output, language_of(output->path, kind), faults);
    return dtp_output_end(output, written, faults);
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

/* Of a table that begins as one of `kind`: whether it also goes on so. */
static bool is_own_table(FILE *file, enum dtp_output_kind kind)
{
    char *line = NULL;
    size_t room = 0, fields = 0;
    bool own = true;
    for (const char *at = kinds[kind].begins; *at; at++)
        if (getc(file) != (unsigned char)*at)
            return false;
    rewind(file);
    for (ssize_t length; own && (length = getline(&line, &room, file)) >= 0;) {
        fields = fields ? fields : count_fields(line);
        own = line[length - 1] != '\n' || count_fields(line) == fields;
    }
    free(line);
    return own;
}

static bool is_own_sealed(FILE *file, size_t bytes, enum language language)
{
    unsigned char there[MOST_SEAL_BYTES], words[MOST_SEAL_BYTES];
    uint64_t digest;
    size_t length = write_seal(language, DTP_DIGEST_START, words);
    if (bytes < length || !digest_of(file, bytes - length, &digest))
        return false;
    write_seal(language, digest, words);
    return fread(there, 1, length, file) == length && memcmp(there, words, length) == 0;
}

static bool is_own(FILE *file, size_t bytes, const char *path, enum dtp_output_kind kind)
{
    return kinds[kind].begins ? is_own_table(file, kind) : is_own_sealed(file, bytes, language_of(path, kind));
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
    if (own)
        return DTP_OK;
    return kind == DTP_OUTPUT_MACHINE
               ? dtp_fault(faults, DTP_BAD_INPUT, path, 0, "is there already; --force replaces it")
               : dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                           "is there already, and not a %s as dtplan wrote it: name another file, or replace it with "
                           "--force",
                           kinds[kind].words);
}
