/*
 * Any bytes as a .pt file: directory, container check, pickle, storages, CRCs, and a file
 * built from what opened, which must open again.
 */
#include <stdlib.h>

#include "libcommon/format/pt.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void use(struct files *f, int file, struct pt *pt)
{
    struct report *r = report_new();
    struct strbuf text = {0};
    struct err e = {0};
    uint8_t *built;
    uint64_t built_size;

    if (zip_check_container(pt_zip(pt), f, file, r, &e) < 0)
        require(e.kind != ERR_NONE);
    pt_check_classes(pt, "x", r);
    err_clear(&e);
    if (pt_check_records(pt, f, &e) < 0)
        require(e.kind == ERR_DATA);
    pk_text(pt_root(pt), &text);
    strbuf_free(&text);
    err_clear(&e);
    if (pt_build("p", pt_root(pt), pt, f, &built, &built_size, &e) == 0) {
        struct pt *again = pt_open(f, files_add_mem(f, built, built_size, "built"), &e);

        require(again != NULL);
        require(pt_check_records(again, f, &e) == 0);
        pt_close(again);
        free(built);
    }
    report_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct files *f = files_new();
    struct err e = {0};
    int file = files_add_mem(f, bytes, size, "x");
    struct pt *pt = pt_open(f, file, &e);

    if (pt)
        use(f, file, pt);
    else
        require(e.kind != ERR_NONE);
    pt_close(pt);
    files_free(f);
    return 0;
}
