/*
 * watch_alarm.c - compare the current findings with the alarms that the book records, and send messages
 *
 * In the book, the alarm about a finding is the entry SCOPE/ABOUT/CODE of "alarms":
 *     { "scope": ..., "text": ..., "since_s": ..., "seen_s": ..., "told": { "mail 1c291ca3": seconds, ... } }
 * "told" has one member per channel that has sent a message. A channel is identified by a checksum of its address,
 * because the URL of a webhook is a secret.
 */
#include "tools/run-watch/watch_alarm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/child.h"
#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/text.h"

/*
 * ---- channels: mail through sendmail, a webhook through curl, a command through sh; these programs are found in PATH
 * ----
 */

enum channel_kind { CHANNEL_MAIL, CHANNEL_WEBHOOK, CHANNEL_COMMAND, CHANNEL_N };

static const double send_limit_s = 30;

/* Returns the address, URL or command of a channel, or NULL if the options do not request this channel. */
static const char *channel_to(const struct runwatch *w, enum channel_kind kind)
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

/* Find sendmail. The PATH of cron jobs does not include the sbin folders. */
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

    err_clean(head);                    /* a newline in the text could add another header to the mail */
    err_clean(to);
    text = str_fmt("To: %s\nSubject: %s\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n"
                   "Auto-Submitted: auto-generated\n\n%s\n", to, head, body);
    rc = run_channel_program(argv, text, " (mail needs a sendmail: postfix, exim4, msmtp-mta, nullmailer, ...)", e);
    free(text);
    free(to);
    free(head);
    return rc;
}

/* Append a word in double quotes, as the configuration of curl requires. */
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
 * Returns the URL of the webhook. @FILE names a file that contains the URL. This keeps the URL out of the list of
 * processes, because everyone who knows it can send messages. The caller frees the result.
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

/*
 * Send a message through a channel. `body` is the text, which should be one line. `subject` is used for mail only.
 * Takes half a minute at most. Returns -1 with ERR_SYS if the program that sends is missing, and with ERR_DATA if it
 * failed; the error names the program.
 */
static int channel_send(const struct runwatch *w, enum channel_kind kind, const char *subject, const char *body,
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

/* ---- alarms ---- */

/*
 * Number of seconds after which an alarm is removed from the book, if the channels that have sent it are not used any
 * more.
 */
static const double forget_s = 30 * 86400.0;

bool alarm_wanted(const struct runwatch *w)
{
    return w->mail || w->webhook || w->command;
}

static char *channel_name(const struct runwatch *w, enum channel_kind kind)
{
    static const char *const word[] = { "mail", "webhook", "command" };

    const char *to = channel_to(w, kind);

    return str_fmt("%s %08x", word[kind], crc_bytes(0, to, strlen(to)));
}

/* Send one message through one channel. Returns 0 if the channel has sent the message, else -1. */
static int send_one(struct runwatch *w, enum channel_kind kind, const char *text, bool over)
{
    char host[256] = "unknown", *subject, *body;
    struct err e = {0};
    int rc;

    gethostname(host, sizeof host - 1);
    body = w->body && !over ? xstrdup(w->body) : str_fmt("run-watch on %s: %s%s", host, over ? "over: " : "", text);
    subject = w->subject && !over ? xstrdup(w->subject)
                                  : str_fmt("%s %.200s", over ? "[OVER]" : "[ALERT]", text);
    rc = channel_send(w, kind, subject, body, &e);
    if (rc < 0)
        cli_fail(&w->cli, &e);
    free(subject);
    free(body);
    return rc;
}

/*
 * Send a current finding through each channel that has not sent it, or has not sent it recently. Returns the number of
 * channels that failed.
 */
static int send_alarm_entry(struct runwatch *w, json_t *entry, const char *text)
{
    json_t *notified = json_object_get(entry, "told");
    int n_failed = 0;

    for (enum channel_kind kind = 0; kind < CHANNEL_N; kind++) {
        char *name;
        double last;

        if (!channel_to(w, kind))
            continue;
        name = channel_name(w, kind);
        last = book_number(notified, name, -1);
        if (last < 0 || (w->remind_min > 0 && w->now_s - last >= 60 * w->remind_min)) {
            if (send_one(w, kind, text, false) == 0)
                json_object_set_new(notified, name, json_real(w->now_s));
            else
                n_failed++;
        }
        free(name);
    }
    return n_failed;
}

/*
 * Returns the book's entry of a finding, after creating it if necessary. Adds the name of the entry to `now`, the set
 * of current entries.
 */
static json_t *find_entry(struct runwatch *w, json_t *alarms, const struct finding *f, json_t *now)
{
    char *key = str_fmt("%s/%s/%s", w->scope, f->file ? f->file : "", f->code);
    json_t *name = text_json(key), *entry = json_object_get(alarms, json_string_value(name));

    if (!json_is_object(entry) || !json_is_object(json_object_get(entry, "told"))) {
        entry = json_pack("{s:o, s:f, s:{}}", "scope", text_json(w->scope), "since_s", w->now_s, "told");
        json_object_set_new(alarms, json_string_value(name), entry);
    }
    json_object_set_new(now, json_string_value(name), json_true());
    json_decref(name);
    free(key);
    return entry;
}

static int send_current_alarms(struct runwatch *w, json_t *alarms, json_t *now)
{
    int n_failed = 0;

    for (int i = 0; i < report_n(w->report); i++) {
        const struct finding *f = report_get(w->report, i);
        json_t *entry;
        char *text, *line;

        if (f->severity == SEV_NOTE)
            continue;
        entry = find_entry(w, alarms, f, now);
        text = finding_text(f);
        line = str_fmt("%s: %s%s: %s", w->scope, f->severity == SEV_WARNING ? "not established: " : "", f->code, text);
        json_object_set_new(entry, "seen_s", json_real(w->now_s));
        json_object_set_new(entry, "text", text_json(line));
        n_failed += send_alarm_entry(w, entry, line);
        free(line);
        free(text);
    }
    return n_failed;
}

/*
 * Send the message that an alarm is over, through the channels that have sent the alarm. Returns true if the entry is
 * no longer needed: no channel is left that must still send this message, or the alarm was last seen more than forget_s
 * ago.
 */
static bool send_resolved_entry(struct runwatch *w, json_t *entry, int *n_failed)
{
    json_t *notified = json_object_get(entry, "told");
    const char *text = json_string_value(json_object_get(entry, "text"));

    for (enum channel_kind kind = 0; kind < CHANNEL_N; kind++) {
        char *name;

        if (!channel_to(w, kind))
            continue;
        name = channel_name(w, kind);
        if (json_object_get(notified, name)) {
            if (send_one(w, kind, text ? text : "?", true) == 0)
                json_object_del(notified, name);
            else
                ++*n_failed;
        }
        free(name);
    }
    return json_object_size(notified) == 0 || w->now_s - book_number(entry, "seen_s", 0) > forget_s;
}

static int send_resolved_alarms(struct runwatch *w, json_t *alarms, const json_t *now)
{
    const char *key;
    json_t *entry;
    void *next;
    int n_failed = 0;

    json_object_foreach_safe(alarms, next, key, entry) {
        const char *scope = json_string_value(json_object_get(entry, "scope"));

        if (scope && strcmp(scope, w->scope) == 0 && !json_object_get(now, key) &&
            send_resolved_entry(w, entry, &n_failed))
            json_object_del(alarms, key);
    }
    return n_failed;
}

int alarm_send(struct runwatch *w, struct book *b)
{
    json_t *alarms = book_part(b, "alarms"), *now = json_object();
    struct err e = {0};
    int n_failed = send_current_alarms(w, alarms, now);

    if (report_count(w->report, SEV_WARNING) == 0)
        n_failed += send_resolved_alarms(w, alarms, now);
    if (book_save(b, &e) < 0) {
        err_add(&e, "; the report will be repeated");
        cli_fail(&w->cli, &e);
        n_failed++;
    }
    json_decref(now);
    return n_failed;
}
