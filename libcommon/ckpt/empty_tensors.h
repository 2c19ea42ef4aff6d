/*
 * empty_tensors.h - check that no parameter has lost its elements
 */
#ifndef SHARDKIT_CKPT_EMPTY_TENSORS_H
#define SHARDKIT_CKPT_EMPTY_TENSORS_H

struct report;
struct source;

/*
 * Report "config" for each parameter without elements, if a parameter of the same name in another layer has elements,
 * or if training arguments describe the model. The severity is ERROR, or WARNING with accept_mismatch. Other models may
 * have such parameters.
 */
void source_check_empty(const struct source *s, struct report *r);

#endif
