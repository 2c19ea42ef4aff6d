/*
 * Any bytes as a pickle: what parses can be printed, copied and written; what was written
 * parses to a tree that is written as the same bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/format/pickle/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* Bytes of the tree, and the tree of those bytes. */
static void rewrite(const struct pk *root, struct strbuf *out, struct pk_tree *t)
{
    struct err e = {0};

    pickle_write(root, out);
    require(pickle_parse(out->buf, out->len, "again", t, &e) == 0);
}

/* The first writing may change types (a set becomes a call of set), the second nothing. */
static void round_trip(const struct pk *root)
{
    struct strbuf first = {0}, second = {0}, third = {0};
    struct arena *a = arena_new(0);
    struct pk_tree u, v;

    rewrite(pk_copy(a, root), &first, &u);
    rewrite(u.root, &second, &v);
    pickle_write(v.root, &third);
    require(second.len == third.len && memcmp(second.buf, third.buf, second.len) == 0);
    strbuf_free(&first);
    strbuf_free(&second);
    strbuf_free(&third);
    pk_tree_free(&u);
    pk_tree_free(&v);
    arena_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct pk_tree t;
    struct strbuf text = {0};
    struct err e = {0};

    if (pickle_parse(bytes, size, "x", &t, &e) < 0) {
        require(e.kind == ERR_DATA);
        return 0;
    }
    pk_text(t.root, &text);
    strbuf_free(&text);
    /* Written calls are a few levels deeper than the set or bytes that was read. */
    if (t.root->height + 4 < PICKLE_MAX_DEPTH)
        round_trip(t.root);
    pk_tree_free(&t);
    return 0;
}
