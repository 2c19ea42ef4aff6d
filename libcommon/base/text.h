/*
 * text.h - names from outside as JSON strings
 *
 * JSON is UTF-8, file names are bytes.
 */
#ifndef SHARDKIT_BASE_TEXT_H
#define SHARDKIT_BASE_TEXT_H

#include <jansson.h>

/* `s` as a JSON string; bytes that are no UTF-8 stand as \xHH, and null for NULL. Never fails. */
json_t *text_json(const char *s);

#endif
