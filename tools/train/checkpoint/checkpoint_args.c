/*
 * checkpoint_args.c - the arguments in a checkpoint: the run's, and those that the model's shape determines
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/checkpoint/checkpoint_impl.h"

/*
 * Parse a list such as ['4', '4', '96'], whose strings are in single quotes, as Python prints them. Returns NULL if the
 * text is not such a list.
 */
static struct pk *parse_list(struct arena *a, const char *s)
{
    struct pk *list = pk_list(a);
    size_t n = strlen(s);

    if (n < 2 || s[0] != '[' || s[n - 1] != ']')
        return NULL;
    for (const char *p = s + 1; p < s + n - 1;) {
        const char *end = *p == '\'' ? strchr(p + 1, '\'') : NULL;

        if (!end)
            return NULL;
        pk_add(a, list, pk_str(a, arena_strndup(a, p + 1, (size_t)(end - p - 1))));
        p = end + 1;
        p += strspn(p, ", ");
    }
    return list;
}

static struct pk *parse_text(struct arena *a, const char *s)
{
    struct pk *list = parse_list(a, s);
    char *end;
    long long i;
    double f;

    if (list || !strcmp(s, "None"))
        return list ? list : pk_none(a);
    if (!strcmp(s, "True") || !strcmp(s, "False"))
        return pk_bool(a, *s == 'T');
    errno = 0;
    i = strtoll(s, &end, 10);
    if (*s && !*end && !errno)
        return pk_int(a, i);
    f = strtod(s, &end);
    /* The text must contain a digit, because "inf" and "nan" may be the names of folders. */
    if (*s && !*end && strpbrk(s, "0123456789"))
        return pk_float(a, f);
    return pk_str(a, s);
}

static struct pk *pickle_argument_value(struct arena *a, const struct checkpoint_value *v)
{
    struct pk *list;

    switch (v->type) {
    case CHECKPOINT_NONE: return pk_none(a);
    case CHECKPOINT_BOOL: return pk_bool(a, v->i != 0);
    case CHECKPOINT_INT: return pk_int(a, v->i);
    case CHECKPOINT_FLOAT: return pk_float(a, v->f);
    case CHECKPOINT_STR: return v->s ? pk_str(a, v->s) : pk_none(a);
    case CHECKPOINT_PK: return v->pk ? pk_copy(a, v->pk) : pk_none(a);
    case CHECKPOINT_TEXT: return parse_text(a, v->s);
    case CHECKPOINT_STRS: break;
    }
    list = pk_list(a);
    for (int i = 0; i < v->n_strs; i++)
        pk_add(a, list, pk_str(a, v->strs[i]));
    return list;
}

static bool is_nothing(const struct pk *v)
{
    double x;
    uint32_t n = 1;

    return pk_is_none(v) || (pk_as_double(v, &x) && x == 0) || (pk_items(v, &n) && n == 0);
}

bool checkpoint_arg_differs(const struct pk *args, const struct checkpoint_value *v, struct strbuf *was,
                            struct strbuf *is)
{
    struct arena *a = arena_new(0);
    const struct pk *saved = pk_get(args, v->name), *now = pickle_argument_value(a, v);
    struct strbuf x = {0}, y = {0};
    double f, g;
    bool differs = saved != NULL;

    if (differs) {
        pk_text(saved, &x);
        pk_text(now, &y);
        differs = strcmp(x.buf, y.buf) != 0;
    }
    if (differs && ((pk_as_double(saved, &f) && pk_as_double(now, &g) && f == g) ||
                    (is_nothing(saved) && is_nothing(now))))
        differs = false;
    if (differs) {
        strbuf_addf(was, "%s", x.buf);
        strbuf_addf(is, "%s", y.buf);
    }
    strbuf_free(&x);
    strbuf_free(&y);
    arena_free(a);
    return differs;
}

/*
 * Returns a pickle value that calls megatron.enums.PositionEmbeddingType(N). Every version of Python can load a call of
 * this form.
 */
static struct pk *pickle_position_type(struct arena *a, const char *name)
{
    struct pk *arg = pk_tuple(a);

    pk_add(a, arg, pk_int(a, strcmp(name, "alibi") ? 2 : 3));
    return pk_call(a, pk_global(a, "megatron.enums", "PositionEmbeddingType"), arg);
}

void checkpoint_args_of_model(struct arena *a, struct pk *d, const struct model_config *m)
{
    const struct pk *was = pk_get(d, "position_embedding_type");
    int64_t value;
    const char *name = was ? pk_enum(was, &value) : NULL;

    pk_set_int(a, d, "num_layers", m->n_layers);
    pk_set_int(a, d, "hidden_size", m->hidden);
    pk_set_int(a, d, "ffn_hidden_size", m->ffn_hidden);
    pk_set_int(a, d, "num_attention_heads", m->n_heads);
    pk_set_int(a, d, "kv_channels", m->hidden / m->n_heads);
    if (m->seq_len) {
        pk_set_int(a, d, "seq_length", m->seq_len);
        pk_set_int(a, d, "encoder_seq_length", m->seq_len);
    }
    if (m->max_positions)
        pk_set_int(a, d, "max_position_embeddings", m->max_positions);
    pk_set_str(a, d, "embed_layernorm", pk_bool(a, m->embed_layernorm));
    pk_set_int(a, d, "padded_vocab_size", m->vocab);
    if (!name || strcmp(name, m->position))     /* otherwise keep the spelling of the loaded checkpoint */
        pk_set_str(a, d, "position_embedding_type", pickle_position_type(a, m->position));
}

void checkpoint_args_of_run(struct arena *a, struct pk *d, const struct checkpoint_saver_opts *o)
{
    const struct stage *s = o->stage;
    int rank = topo_rank(s->topo, s->pp, 0, s->tp);
    const struct pk *position = pk_get(d, "position_embedding_type");

    for (int i = 0; i < o->n_args; i++)
        if ((strcmp(o->args[i].name, "position_embedding_type") || !position) &&
            !(o->args[i].weak && pk_get(d, o->args[i].name)))
            pk_set_str(a, d, o->args[i].name, pickle_argument_value(a, &o->args[i]));
    checkpoint_args_of_model(a, d, &s->model);
    pk_set_str(a, d, "bf16", pk_bool(a, o->weights == DTYPE_BF16));
    pk_set_str(a, d, "fp16", pk_bool(a, o->weights == DTYPE_F16));
    pk_set_str(a, d, "params_dtype", pk_global(a, "torch", o->weights == DTYPE_BF16 ? "bfloat16"
                                                         : o->weights == DTYPE_F16 ? "float16" : "float32"));
    if (o->weights == DTYPE_F16)
        pk_set_int(a, d, "zero_stage", 1);
    pk_set_int(a, d, "tensor_model_parallel_size", s->topo.tp);
    pk_set_int(a, d, "pipeline_model_parallel_size", s->topo.pp);
    pk_set_int(a, d, "data_parallel_size", s->topo.dp);
    if (pk_get(d, "ds_sequence_parallel_size"))
        pk_set_int(a, d, "ds_sequence_parallel_size", 1);
    pk_set_int(a, d, "rank", rank);
    pk_set_int(a, d, "local_rank", o->local_rank);
    pk_set_int(a, d, "world_size", topo_world(s->topo));
    /*
     * If the loaded checkpoint has no optimizer state, its arguments have no_save_optim set. The new checkpoint does
     * have optimizer state.
     */
    if (pk_get(d, "no_save_optim"))
        pk_set_str(a, d, "no_save_optim", pk_none(a));
}
