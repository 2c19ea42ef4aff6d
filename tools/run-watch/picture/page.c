/* page.c - write the HTML around the data of the runs */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/text.h"
#include "tools/run-watch/picture/page_impl.h"

/*
 * A curve is thinned to a number of pixel columns between these limits. The more runs, the fewer columns each curve
 * gets.
 */
enum { MOST_COLUMNS = 1100, LEAST_COLUMNS = 200 };

static void add_html(struct strbuf *out, const char *text)
{
    for (; *text; text++)
        if (strchr("<>&\"", *text))
            strbuf_addf(out, "&#%d;", *text);
        else
            strbuf_add(out, text, 1);
}

static void add_data(struct strbuf *out, const struct page *p)
{
    int columns = MOST_COLUMNS * 2 / (p->n_runs + 1);
    json_t *title = text_json(p->title);

    columns = columns < LEAST_COLUMNS ? LEAST_COLUMNS : columns;
    strbuf_addf(out, "{\"title\":");
    page_add_json(out, title);
    json_decref(title);
    strbuf_addf(out, ",\"made_s\":%.0f,\"areas\":", p->made_s);
    page_add_json(out, p->areas);
    strbuf_addf(out, ",\"notes\":");
    page_add_json(out, p->notes);
    strbuf_addf(out, ",\"runs\":[");
    for (int i = 0; i < p->n_runs; i++) {
        strbuf_addf(out, i ? "," : "");
        page_add_run(out, p->run[i], columns);
    }
    strbuf_addf(out, "]}");
}

void page_html(const struct page *p, struct strbuf *out)
{
    strbuf_addf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                "<meta name=\"color-scheme\" content=\"light dark\">\n<title>");
    add_html(out, p->title);
    strbuf_addf(out, "</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n%s</style>\n</head>\n<body>\n"
                "<main><noscript>This page draws its curves by a script that it brings along; scripts are off."
                "</noscript></main>\n<script type=\"application/json\" id=\"data\">", page_css);
    add_data(out, p);
    strbuf_addf(out, "</script>\n<script>\n%s</script>\n</body>\n</html>\n", page_js);
}
