#include "base/append.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 3, 0))) static void append(char *out, size_t bytes, const char *format, va_list arguments)
{
    size_t used = strnlen(out, bytes);
    vsnprintf(out + used, bytes - used, format, arguments);
}

void dtp_append(char *out, size_t bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    append(out, bytes, format, arguments);
    va_end(arguments);
}

void dtp_append_part(char *out, size_t bytes, const char *separator, const char *format, ...)
{
    va_list arguments;
    if (*out)
        dtp_append(out, bytes, "%s", separator);
    va_start(arguments, format);
    append(out, bytes, format, arguments);
    va_end(arguments);
}
