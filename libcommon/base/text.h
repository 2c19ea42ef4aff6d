/*
 * text.h - names from outside as JSON strings
 *
 * JSON is UTF-8, file names are bytes.
 */
#ifndef SHARDKIT_BASE_TEXT_H
#define SHARDKIT_BASE_TEXT_H

#include <jansson.h>

#include "libcommon/base/report.h"

/* `s` as a JSON string; bytes that are no UTF-8 stand as \xHH, and null for NULL. Never fails. */
json_t *text_json(const char *s);
/* All findings of a report: a list of {code, text}. */
json_t *text_notes(const struct report *notes);

#endif
