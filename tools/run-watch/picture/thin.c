/*
 * thin.c - select the visible points of a long curve
 */
#include "tools/run-watch/picture/thin.h"

#include <math.h>
#include <stdint.h>

int thin_pick(const double *y, size_t stride, int n, int columns, int *keep)
{
    int kept = 0, n_finite = 0;

    for (int i = 0; i < n; i++)
        if (isfinite(y[(size_t)i * stride]))
            keep[n_finite++] = i;
    if (n_finite <= 2 * columns)
        return n_finite;
    /*
     * This loop reads and writes the same array keep[]. That is safe because a column has at least two points, so the
     * position that is read is ahead of the one that is written.
     */
    for (int c = 0; c < columns; c++) {
        const int from = (int)((int64_t)c * n_finite / columns), to = (int)((int64_t)(c + 1) * n_finite / columns);
        int low = keep[from], high = keep[from], a, b;

        for (int i = from; i < to; i++) {
            if (y[(size_t)keep[i] * stride] < y[(size_t)low * stride])
                low = keep[i];
            if (y[(size_t)keep[i] * stride] > y[(size_t)high * stride])
                high = keep[i];
        }
        a = low < high ? low : high;
        b = low < high ? high : low;
        keep[kept++] = a;
        if (b != a)
            keep[kept++] = b;
    }
    return kept;
}
