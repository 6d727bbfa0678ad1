/* The router of a lab: carries packets between TUN devices with delay, jitter, loss and rates. Knows no topology file.
 *
 *   router CONFIG STATS FD...      CONFIG is read again on SIGHUP; STATS is rewritten twice a second.
 *
 * It ends on SIGTERM, and when its standard input does: that is a pipe from the lab's owner, however the owner dies.
 * CONFIG (text, written by topology.py): count queue_s; up rates; down rates (bytes/s, 0 = unlimited);
 * then for each source and target: delay_s jitter_s loss cable; then the number of cables and their rates.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { MAX = 200, HEADER = 10, LARGEST = 70000, WIRE = 1448 };

typedef enum { AT_CABLE, AT_DOWN_LINK, AT_HOST } Stage;
typedef struct { double due; uint64_t order; Stage stage; int source, target, length; unsigned char *bytes; } Packet;
/* What happens to a packet next, and when. Every queue is entered at the time of arrival there, so that a packet which is
 * still on its long way does not hold up one that came by a short one. */
typedef struct { double delay, jitter, loss; int cable; } Path;

static int count;
static double queue_s, up[MAX], down[MAX], cable_rate[MAX * MAX];
static Path path[MAX][MAX];
static double up_free[MAX], down_free[MAX], cable_free[MAX * MAX], last_due[MAX][MAX];
static uint64_t sent[MAX], received[MAX], dropped[MAX];
static Packet *heap;
static size_t held, room;
static volatile sig_atomic_t reload_wanted, stop_wanted;

static void on_signal(int number) { if (number == SIGHUP) reload_wanted = 1; else stop_wanted = 1; }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double chance(void)
{
    static uint64_t state = 0x9E3779B97F4A7C15ull;
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return (state >> 11) * 0x1p-53;
}

static void read_config(const char *name)
{
    FILE *file = fopen(name, "r");
    int cables = 0, ok = file && fscanf(file, "%d %lf", &count, &queue_s) == 2 && count <= MAX;
    for (int i = 0; ok && i < count; i++) ok = fscanf(file, "%lf", &up[i]) == 1;
    for (int i = 0; ok && i < count; i++) ok = fscanf(file, "%lf", &down[i]) == 1;
    for (int i = 0; ok && i < count; i++)
        for (int j = 0; ok && j < count; j++)
            ok = fscanf(file, "%lf %lf %lf %d", &path[i][j].delay, &path[i][j].jitter, &path[i][j].loss, &path[i][j].cable) == 4;
    ok = ok && fscanf(file, "%d", &cables) == 1;
    for (int i = 0; ok && i < cables; i++) ok = fscanf(file, "%lf", &cable_rate[i]) == 1;
    if (file) fclose(file);
    if (!ok) { fprintf(stderr, "lab router: bad configuration %s\n", name); exit(1); }
}

static int earlier(const Packet *a, const Packet *b)
{
    return a->due != b->due ? a->due < b->due : a->order < b->order;
}

static void push(Packet packet)
{
    static uint64_t order;
    packet.order = order++;
    if (held == room) heap = realloc(heap, (room = room ? 2 * room : 4096) * sizeof *heap);
    size_t i = held++;
    while (i && earlier(&packet, &heap[(i - 1) / 2])) { heap[i] = heap[(i - 1) / 2]; i = (i - 1) / 2; }
    heap[i] = packet;
}

static Packet pop(void)
{
    Packet first = heap[0], last = heap[--held];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < held; i = child) {
        if (child + 1 < held && earlier(&heap[child + 1], &heap[child])) child++;
        if (!earlier(&heap[child], &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

/* The time at which `size` bytes have passed a queue that serves `rate`; below 0 when the queue is full. */
static double pass(double *free_at, double rate, double t, int size)
{
    if (rate <= 0) return t;
    double begin = t > *free_at ? t : *free_at;
    if (begin - t > queue_s) return -1;
    return *free_at = begin + size / rate;
}

static void accept_packet(int source, const unsigned char *bytes, int length)
{
    const unsigned char *ip = bytes + HEADER;
    if (length < HEADER + 20 || ip[0] >> 4 != 4 || ip[16] != 10 || ip[17] != 77 || ip[18] != 0) return;
    int target = ip[19] - 1, size = length - HEADER;
    if (target < 0 || target >= count) return;
    Path *way = &path[source][target];
    sent[source] += size;
    if (way->loss > 0) {
        double keep = 1;
        for (int segment = 0; segment * WIRE < size; segment++) keep *= 1 - way->loss;
        if (chance() >= keep) { dropped[source]++; return; }
    }
    double t = pass(&up_free[source], up[source], now(), size);
    if (t < 0) { dropped[source]++; return; }
    Packet packet = { t, 0, AT_CABLE, source, target, length, malloc(length) };
    memcpy(packet.bytes, bytes, length);
    push(packet);
}

static void drop(Packet packet, int where)
{
    dropped[where]++;
    free(packet.bytes);
}

/* The packet is where it was due: it enters the next queue, or is handed over. */
static void advance(Packet packet, int device)
{
    Path *way = &path[packet.source][packet.target];
    int size = packet.length - HEADER;
    double t = packet.due;
    switch (packet.stage) {
    case AT_CABLE:
        if (way->cable >= 0) t = pass(&cable_free[way->cable], cable_rate[way->cable], t, size);
        if (t < 0) { drop(packet, packet.source); return; }
        t += way->delay + way->jitter * chance();
        if (t < last_due[packet.source][packet.target]) t = last_due[packet.source][packet.target];   /* a path keeps its order */
        last_due[packet.source][packet.target] = packet.due = t;
        packet.stage = AT_DOWN_LINK;
        push(packet);
        return;
    case AT_DOWN_LINK:
        t = pass(&down_free[packet.target], down[packet.target], t, size);
        if (t < 0) { drop(packet, packet.target); return; }
        packet.due = t;
        packet.stage = AT_HOST;
        push(packet);
        return;
    case AT_HOST:
        if (write(device, packet.bytes, packet.length) < 0) { drop(packet, packet.target); return; }
        received[packet.target] += size;
        free(packet.bytes);
    }
}

static void write_stats(const char *name)
{
    char temporary[512];
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    FILE *file = fopen(temporary, "w");
    if (!file) return;
    for (int i = 0; i < count; i++)
        fprintf(file, "%llu %llu %llu\n", (unsigned long long)sent[i], (unsigned long long)received[i], (unsigned long long)dropped[i]);
    fclose(file);
    rename(temporary, name);
}

int main(int argc, char **argv)
{
    struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGHUP, &action, NULL); sigaction(SIGTERM, &action, NULL); sigaction(SIGINT, &action, NULL);
    sched_setscheduler(0, SCHED_RR, &(struct sched_param){ .sched_priority = 1 });      /* so that delays are the lab's, not the scheduler's */
    read_config(argv[1]);
    int fds = argc - 3, poller = epoll_create1(0), fd_of[MAX];
    if (fds != count) { fprintf(stderr, "lab router: %d devices for %d hosts\n", fds, count); return 1; }
    epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &(struct epoll_event){ .events = EPOLLIN, .data.u32 = MAX });
    for (int i = 0; i < fds; i++) {
        fd_of[i] = atoi(argv[3 + i]);
        epoll_ctl(poller, EPOLL_CTL_ADD, fd_of[i], &(struct epoll_event){ .events = EPOLLIN, .data.u32 = i });
    }
    static unsigned char bytes[LARGEST];
    for (double next_stats = 0; !stop_wanted;) {
        if (reload_wanted) { reload_wanted = 0; read_config(argv[1]); }
        double wait = held ? heap[0].due - now() : 0.2;
        wait = wait < 0 ? 0 : wait > 0.2 ? 0.2 : wait;
        struct timespec limit = { 0, (long)(wait * 1e9) };
        struct epoll_event events[64];
        int ready = epoll_pwait2(poller, events, 64, &limit, NULL);
        for (int e = 0; e < ready; e++) {
            int source = events[e].data.u32;
            if (source == MAX) { stop_wanted = 1; break; }
            for (int burst = 0; burst < 64; burst++) {
                int length = read(fd_of[source], bytes, sizeof bytes);
                if (length <= 0) break;
                accept_packet(source, bytes, length);
            }
        }
        double t = now();
        while (held && heap[0].due <= t) {
            Packet packet = pop();
            advance(packet, fd_of[packet.target]);
        }
        if (t > next_stats) { next_stats = t + 0.5; write_stats(argv[2]); }
    }
    return 0;
}
