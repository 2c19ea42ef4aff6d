/*
 * badhttp.c - a web server that fails: badhttp PORT [SERVER EVERY], until it is killed
 *
 * Answers 500 to everything. With SERVER, the port of one that works, it does so to one connection in EVERY; another
 * one of them is cut after some bytes of it went through, and the others are passed on as they are.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

enum { CUT_BYTES = 50000 };

static struct sockaddr_in here(const char *port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port)),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int answer_500(int c)
{
    static const char answer[] = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    char asked[65536];

    return read(c, asked, sizeof asked) > 0 && write(c, answer, sizeof answer - 1) < 0 ? 1 : 0;
}

/* What one side says to the other, until either ends, or `most` bytes went either way. */
static int pass_on(int a, int b, size_t most)
{
    struct pollfd p[2] = { { .fd = a, .events = POLLIN }, { .fd = b, .events = POLLIN } };
    char buf[65536];

    for (size_t all = 0; all < most && poll(p, 2, -1) > 0;)
        for (int i = 0; i < 2; i++) {
            ssize_t n = p[i].revents ? read(p[i].fd, buf, sizeof buf) : 0;

            if (p[i].revents && n <= 0)
                return 0;
            for (ssize_t at = 0, k; at < n; at += k)
                if ((k = write(p[1 - i].fd, buf + at, (size_t)(n - at))) <= 0)
                    return 0;
            all += (size_t)n;
        }
    return 0;
}

static int serve(int c, const char *server, long number, long every)
{
    struct sockaddr_in a;
    int s;

    if (!server || number % every == 0)
        return answer_500(c);
    a = here(server);
    s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof a) < 0)
        return 1;
    return pass_on(c, s, number % every == every / 2 ? CUT_BYTES : (size_t)-1);
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = here(argc > 1 ? argv[1] : "0");
    long every = argc > 3 ? atol(argv[3]) : 1;
    int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);

    signal(SIGCHLD, SIG_IGN);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (s < 0 || every < 1 || bind(s, (struct sockaddr *)&a, sizeof a) < 0 || listen(s, 16) < 0)
        return 1;
    for (long number = 1;; number++) {
        int c = accept(s, NULL, NULL);

        if (c >= 0 && fork() == 0)
            _exit(serve(c, argc > 3 ? argv[2] : NULL, number, every));
        close(c);
    }
}
