#include "train/progress.h"

#include "base/sizes.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PLAIN_LINES = 50, GAUGE = 6, WIDTH = 80 };

void spw__progress_init(spw__progress *progress, FILE *screen, bool live)
{
    *progress = (spw__progress){.screen = screen, .live = live, .every = 1};
}

void spw__progress_plan(spw__progress *progress, uint64_t total)
{
    uint64_t every = (total + PLAIN_LINES - 1) / PLAIN_LINES;
    progress->total = total;
    progress->every = every ? every : 1;
}

static int columns_of(FILE *screen)
{
    struct winsize size;
    if (ioctl(fileno(screen), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return WIDTH;
}

static void draw_gauge(const spw__step_record *r, char gauge[GAUGE + 1])
{
    double share = r->capacity_bytes ? (double)r->device_bytes / (double)r->capacity_bytes : 0;
    for (int i = 0; i < GAUGE; i++)
        gauge[i] = share * GAUGE > i + 0.5 ? '#' : '.';
    gauge[GAUGE] = 0;
}

static void format_left(double seconds, char *text, size_t bytes)
{
    uint64_t s = (uint64_t)(seconds + 0.5);
    if (s >= 3600)
        (void)snprintf(text, bytes, "%" PRIu64 ":%02u:%02u", s / 3600, (unsigned)(s / 60 % 60),
                       (unsigned)(s % 60));
    else
        (void)snprintf(text, bytes, "%u:%02u", (unsigned)(s / 60), (unsigned)(s % 60));
}

/* Short, so that 80 columns hold the live line of a run of thousands of steps. */
static void format_live(const spw__step_record *r, char *text, size_t bytes)
{
    char used[24], has[24], gauge[GAUGE + 1];
    uint64_t state = r->state_bytes ? r->state_bytes : 1;
    draw_gauge(r, gauge);
    (void)snprintf(text, bytes, "state %.0f%% [%s] %s/%s",
                   100.0 * (double)r->resident_bytes / (double)state, gauge,
                   spw__format_size(r->device_bytes, used, sizeof used),
                   spw__format_size(r->capacity_bytes, has, sizeof has));
}

static void format_plain(const spw__step_record *r, char *text, size_t bytes)
{
    char used[24], has[24], on[24], state[24];
    (void)snprintf(text, bytes, "device %s of %s, state on it %s of %s",
                   spw__format_size(r->device_bytes, used, sizeof used),
                   spw__format_size(r->capacity_bytes, has, sizeof has),
                   spw__format_size(r->resident_bytes, on, sizeof on),
                   spw__format_size(r->state_bytes, state, sizeof state));
}

static void format_line(const spw__progress *p, const spw__step_record *r, char *line, size_t bytes)
{
    char left[32], memory[128];
    double seconds = p->ms / 1e3;
    format_left(seconds / (double)(r->step - p->before) * (double)(p->total - r->step), left,
                sizeof left);
    if (p->live)
        format_live(r, memory, sizeof memory);
    else
        format_plain(r, memory, sizeof memory);
    (void)snprintf(line, bytes, "step %" PRIu64 "/%" PRIu64 "  loss %.4f  %.0f tok/s  %s left  %s",
                   r->step, p->total, r->loss, (double)p->tokens / (seconds > 0 ? seconds : 1),
                   left, memory);
}

void spw__progress_step(spw__progress *progress, const spw__step_record *record)
{
    char line[256];
    progress->ms += record->ms;
    progress->tokens += record->tokens;
    if (!progress->screen)
        return;
    bool last = record->step == progress->total;
    format_line(progress, record, line, sizeof line);
    if (progress->live) {
        (void)fprintf(progress->screen, "\r\033[K%.*s%s", columns_of(progress->screen) - 1, line,
                      last ? "\n" : "");
        progress->open = !last;
    } else if (last || record->step == progress->before + 1 ||
               record->step % progress->every == 0) {
        (void)fprintf(progress->screen, "%s\n", line);
    }
    (void)fflush(progress->screen);
}

void spw__progress_say(spw__progress *progress, const char *format, ...)
{
    if (!progress->screen)
        return;
    if (progress->open)
        (void)fputc('\n', progress->screen);
    progress->open = false;
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(progress->screen, format, arguments);
    va_end(arguments);
    (void)fputc('\n', progress->screen);
    (void)fflush(progress->screen);
}
