/*
 * channel.c - call sendmail, curl and sh, each found through PATH
 */
#include "tools/run-watch/channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/child.h"
#include "libcommon/base/files.h"
#include "libcommon/base/text.h"

static const double send_limit_s = 30;

const char *channel_to(const struct runwatch *w, enum channel_kind kind)
{
    const char *const to[] = { w->mail, w->webhook, w->command };

    return to[kind];
}

static int run_channel_program(const char *const *argv, const char *input, const char *missing, struct err *e)
{
    struct strbuf err_text = {0};
    const struct child_call c = { argv, input, .err = &err_text, .limit_s = send_limit_s };
    char words[256];
    int status, rc = child_run(&c, &status, e);

    if (rc < 0 && e->kind == ERR_SYS)
        err_add(e, "%s", missing);
    if (rc == 0 && status != 0) {
        err_data(e, argv[0], ERR_NO_BYTE, "failed with status %d: %s", status,
                 child_last_words(&err_text, words, sizeof words));
        rc = -1;
    }
    strbuf_free(&err_text);
    return rc;
}

/* Find sendmail. The PATH of cron jobs does not include sbin. */
static const char *find_sendmail(void)
{
    static const char *const places[] = { "/usr/sbin/sendmail", "/usr/lib/sendmail" };
    const char *path = getenv("PATH");

    while (path && *path) {
        size_t n = strcspn(path, ":");
        char *file = str_fmt("%.*s/sendmail", (int)n, path);
        const bool there = n && access(file, X_OK) == 0;

        free(file);
        if (there)
            return "sendmail";
        path += n + (path[n] == ':');
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    return "sendmail";
}

static int send_mail(const struct runwatch *w, const char *subject, const char *body, struct err *e)
{
    const char *const argv[] = { find_sendmail(), "-t", "-i", NULL };
    char *head = xstrdup(subject), *to = xstrdup(w->mail), *text;
    int rc;

    err_clean(head);                    /* a newline must not be able to add another header */
    err_clean(to);
    text = str_fmt("To: %s\nSubject: %s\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n"
                   "Auto-Submitted: auto-generated\n\n%s\n", to, head, body);
    rc = run_channel_program(argv, text, " (mail needs a sendmail: postfix, exim4, msmtp-mta, nullmailer, ...)", e);
    free(text);
    free(to);
    free(head);
    return rc;
}

/* Append a word in the quoted form of curl's configuration. */
static void add_quoted(struct strbuf *sb, const char *s)
{
    strbuf_add(sb, "\"", 1);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            strbuf_add(sb, "\\", 1);
        strbuf_add(sb, s, 1);
    }
    strbuf_add(sb, "\"\n", 2);
}

/*
 * Returns the URL. With @FILE it is read from a file: the URL permits sending messages, so it should not be visible
 * to other users of this machine in the list of processes.
 */
static char *read_url(const struct runwatch *w, struct err *e)
{
    uint64_t size;
    char *url;

    if (w->webhook[0] != '@')
        return xstrdup(w->webhook);
    url = file_slurp(w->webhook + 1, 65536, &size, e);
    if (url)
        url[strcspn(url, "\r\n")] = '\0';
    return url;
}

static int send_webhook(const struct runwatch *w, const char *line, struct err *e)
{
    static const char *const argv[] = { "curl", "-fsS", "--max-time", "25", "-o", "/dev/null", "-K", "-", NULL };
    json_t *o = json_pack("{s:o}", "text", text_json(line));
    char *json = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII), *url = read_url(w, e);
    struct strbuf config = {0};
    int rc = -1;

    if (url) {
        strbuf_addf(&config, "url = ");
        add_quoted(&config, url);
        strbuf_addf(&config, "header = \"Content-Type: application/json\"\ndata-raw = ");
        add_quoted(&config, json);
        rc = run_channel_program(argv, config.buf, " (a webhook needs the program curl: apt-get install curl)", e);
    }
    strbuf_free(&config);
    free(url);
    free(json);
    json_decref(o);
    return rc;
}

int channel_send(const struct runwatch *w, enum channel_kind kind, const char *subject, const char *body,
                 struct err *e)
{
    const char *const argv[] = { "sh", "-c", w->command, NULL };
    char *line;
    int rc;

    if (kind == CHANNEL_MAIL)
        return send_mail(w, subject, body, e);
    if (kind == CHANNEL_WEBHOOK)
        return send_webhook(w, body, e);
    line = str_fmt("%s\n", body);
    rc = run_channel_program(argv, line, "", e);
    free(line);
    return rc;
}
