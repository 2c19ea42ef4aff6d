#!/bin/sh
# mail.sh - alarms of run-watch through genuine programs: msmtp as the machine's sendmail, curl to a webhook
#
# The alarms are checked at their destination: an SMTP server and an HTTP server, both on loopback. Skipped without
# msmtp, curl or Python.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
PYTHON=${PYTHON:-python3}
for program in msmtp curl "$PYTHON"; do command -v "$program" >/dev/null || skip "no $program here"; done
cat >"$W/servers.py" <<'TEXT'
"""Takes mails (SMTP) and posts (HTTP): smtp.log, mail.N, post.N in the folder given; ports says where they are."""
import http.server, itertools, os, socketserver, sys, threading
os.chdir(sys.argv[1])
mails, posts = itertools.count(1), itertools.count(1)

class Smtp(socketserver.StreamRequestHandler):
    def handle(self):
        say = lambda text: self.wfile.write(text.encode() + b"\r\n")
        say("220 here")
        for line in self.rfile:
            word = line[:4].upper()
            with open("smtp.log", "ab") as log:
                log.write(line)
            if word == b"DATA":
                say("354 go on")
                with open("mail.part", "wb") as f:
                    for text in self.rfile:
                        if text == b".\r\n":
                            break
                        f.write(text.replace(b"\r\n", b"\n"))
                os.rename("mail.part", "mail.%d" % next(mails))
            say("221 bye" if word == b"QUIT" else "250 ok")
            if word == b"QUIT":
                return

class Http(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("post.%d" % next(posts), "wb") as f:
            f.write(self.headers["Content-Type"].encode() + b"\n" + self.path.encode() + b"\n" + body)
        self.send_response(200 if self.path == "/T0/secret" else 404)
        self.end_headers()
    def log_message(self, *what):
        pass

smtp = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)
web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Http)
threading.Thread(target=smtp.serve_forever, daemon=True).start()
with open("ports.part", "w") as f:
    f.write("%d %d\n" % (smtp.server_address[1], web.server_address[1]))
os.rename("ports.part", "ports")
web.serve_forever()
TEXT
"$PYTHON" "$W/servers.py" "$W" 2>"$W/servers.err" &
servers=$!
trap 'kill $servers 2>/dev/null' EXIT
n=0
until [ -s "$W/ports" ] || [ $n -gt 200 ]; do n=$((n + 1)); sleep 0.1; done
read -r smtp web <"$W/ports"

mkdir "$W/sbin" "$W/ckpt"
ln -s "$(command -v msmtp)" "$W/sbin/sendmail"
HOME=$W PATH=$W/sbin:$PATH
export HOME
printf 'account default\nhost 127.0.0.1\nport %s\nfrom train@cluster.example\n' "$smtp" >"$W/.msmtprc" && chmod 600 "$W/.msmtprc"
printf 'http://127.0.0.1:%s/T0/secret\n' "$web" >"$W/hook"

now=$(date +%s)
status_json() {     # AGE
    printf '{"host":"n17","pid":12,"world_size":8,"started_s":%d,"updated_s":%d,"phase":"train","iteration":100,"loss":2.0,' \
        $((now - 9000)) $((now - $1))
    printf '"iteration_s":60.0,"last_complete_tag":null,"stalled":null,"stop_reason":null,"message":null}\n'
}
awk 'BEGIN { for (i = 1; i <= 100; i++)
    printf " iteration %8d/%8d | consumed samples: %12d | elapsed time per iteration (s): %.2f | lm loss: %.6E | samples per second: %.3f |\n",
        i, 1000, i * 64, 60 + 0.1 * (i % 2), 2 + 0.01 * (i % 3), 64 / 60 }' >"$W/log"
look() { run-watch status -q --now "$now" --log "$W/log" --mail oncall@example.org --webhook "@$W/hook" --state "$W/book" "$W/ckpt"; }
status_json 10 >"$W/ckpt/status.json"
check "all is well: status 0" look
check "and nobody is told" [ ! -e "$W/mail.1" ]
status_json 4000 >"$W/ckpt/status.json"
check_exit "a run that stands: status 1" 1 'stale: no heartbeat for' look
check "a mail arrives" test -s "$W/mail.1"
check "to whom it is for" grep -qi '^RCPT TO:<oncall@example.org>' "$W/smtp.log"
check "with a subject" grep -q '^Subject: \[ALERT\] status .*/ckpt: stale: no heartbeat for' "$W/mail.1"
check "and what it is about" sh -c "sed '1,/^\$/d' '$W/mail.1' | grep -q 'stale: no heartbeat for'"
check "a post arrives" test -s "$W/post.1"
check "which is JSON" grep -q '^application/json' "$W/post.1"
check "with the line as its text" "$PYTHON" -c '
import json, sys
assert "stale: no heartbeat for" in json.loads(open(sys.argv[1]).read().split("\n", 2)[2])["text"]' "$W/post.1"
check_exit "again: still wrong" 1 'stale: ' look
check "and told once" [ ! -e "$W/mail.2" ]
status_json 10 >"$W/ckpt/status.json"
check "it is over" look
check "which is told" grep -q '^Subject: \[OVER\] ' "$W/mail.2"
# The address of a hook that does not exist: the server does not answer with success.
printf 'http://127.0.0.1:%s/gone\n' "$web" >"$W/hook"
status_json 4000 >"$W/ckpt/status.json"
check_exit "a hook that refuses is told" 1 'curl: failed with status 22' look
kill "$servers"; wait "$servers" 2>/dev/null
: >"$W/.msmtprc" && printf 'account default\nhost 127.0.0.1\nport %s\nfrom a@b\n' "$smtp" >"$W/.msmtprc"
rm "$W/book"
check_exit "a server that is not there: said, and not taken for told" 1 'sendmail' look
finish
