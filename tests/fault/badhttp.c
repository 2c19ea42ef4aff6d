/*
 * badhttp.c - a web server that answers 500 to everything: badhttp PORT, until it is killed
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static const char answer[] = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argc > 1 ? argv[1] : "0")),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
    char asked[65536];

    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) < 0 || listen(s, 16) < 0)
        return 1;
    for (;;) {
        int c = accept(s, NULL, NULL);

        if (c >= 0 && read(c, asked, sizeof asked) > 0 && write(c, answer, sizeof answer - 1) < 0)
            return 1;
        close(c);
    }
}
