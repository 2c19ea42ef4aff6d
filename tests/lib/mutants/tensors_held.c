#include <jansson.h>

#include "tests/lib/mutants/tensors_held.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"

/* Return type, shape and CRC of a tensor's bytes, or NULL if its range is outside the file. */
static json_t *described(const struct mutate_file *f, uint64_t data, const json_t *t)
{
    const json_t *place = json_object_get(t, "data_offsets");
    const uint64_t from = (uint64_t)json_integer_value(json_array_get(place, 0));
    const uint64_t end = (uint64_t)json_integer_value(json_array_get(place, 1));

    if (json_array_size(place) != 2 || from > end || end > f->size - data)
        return NULL;
    return json_pack("[O, O, I]", json_object_get(t, "dtype"), json_object_get(t, "shape"),
                     (json_int_t)crc_bytes(0, f->bytes + data + from, end - from));
}

/* Add the tensors of the file to lists by name. */
static void add_tensors(json_t *held, const struct mutate_file *f)
{
    const uint64_t len = f->size > 8 ? get_le32(f->bytes) : 0;
    json_t *root = len && len <= f->size - 8 ? json_loadb((const char *)f->bytes + 8, len, 0, NULL) : NULL, *t;
    const char *name;

    json_object_foreach(root, name, t) {
        json_t *all = json_object_get(held, name), *one;

        if (strcmp(name, "__metadata__") == 0 || !(one = described(f, 8 + len, t)))
            continue;
        if (!all)
            json_object_set_new(held, name, all = json_array());
        json_array_append_new(all, one);
    }
    json_decref(root);
}

static json_t *tensors_of(const struct mutate_set *m)
{
    json_t *held = json_object();

    for (int i = 0; i < m->n; i++)
        if (!m->file[i].gone && str_ends(m->file[i].name, ".safetensors"))
            add_tensors(held, &m->file[i]);
    return held;
}

bool tensors_held(const struct mutate_set *m, const char *out)
{
    struct mutate_set *written = xcalloc(1, sizeof *written);
    json_t *want = tensors_of(m), *got, *all, *one;
    const char *name;
    bool same;
    size_t i;

    mutate_load(written, out);
    got = tensors_of(written);
    same = json_object_size(got) > 0 && json_object_size(got) == json_object_size(want);
    json_object_foreach(got, name, all) {
        bool found = false;

        json_array_foreach(json_object_get(want, name), i, one)
            found |= json_equal(one, json_array_get(all, 0)) != 0;
        same &= found && json_array_size(all) == 1;
    }
    json_decref(want);
    json_decref(got);
    mutate_free(written);
    free(written);
    return same;
}
