/*
 * list_tensors.c - list the tensors of a checkpoint of any layout, with the first element of each that is f32
 *
 *     cc list_tensors.c $(pkg-config --cflags --libs shardkit) -o list_tensors
 *     ./list_tensors global_step20
 */
#include <inttypes.h>
#include <shardkit.h>
#include <stdio.h>
#include <string.h>

static int print_tensor(const struct sk_checkpoint *c, int64_t i, struct sk_error *e)
{
    const struct sk_tensor *t = sk_tensor(c, i);
    struct sk_place place;
    float first;

    printf("%s %s [", t->name, t->state ? t->state : "-");
    for (int d = 0; d < t->ndim; d++)
        printf("%s%" PRId64, d ? ", " : "", t->shape[d]);
    printf("] %s", t->dtype);
    if (strcmp(t->dtype, "f32") == 0 && t->elements > 0) {
        if (sk_read(c, i, 0, 1, &first, sizeof first, e) < 0)
            return -1;
        printf(", first %g", (double)first);
    }
    printf(sk_locate(c, i, &place) ? ", whole in one file\n" : "\n");
    return 0;
}

int main(int argc, char **argv)
{
    struct sk_error e = {0};
    struct sk_checkpoint *c;
    int rc = 0;

    if (argc != 2) {
        fprintf(stderr, "Usage: list_tensors PATH\n");
        return 2;
    }
    c = sk_open(argv[1], NULL, &e);
    for (int64_t i = 0; c && rc == 0 && i < sk_count(c); i++)
        rc = print_tensor(c, i, &e);
    if (!c || rc < 0)
        fprintf(stderr, "list_tensors: %s\n", e.text);
    sk_close(c);
    return !c || rc < 0;
}
