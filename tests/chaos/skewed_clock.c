/* Preloaded into a process, shifts its wall clock by the seconds (int64) in the file SKEW_FILE.
 *
 * The file is mapped, so a change is seen by the next call, without a read and never by halves.
 * CLOCK_MONOTONIC and its like stay true, as on a machine whose wall clock is wrong. Nothing is
 * included, so that any C compiler will do, with or without the headers of the system's library.
 */

typedef long i64;
struct spec { i64 sec, part; };

extern int open(const char *, int, ...);
extern void *mmap(void *, unsigned long, int, int, int, i64);
extern char *getenv(const char *);
extern long syscall(long, ...);

#if defined(__x86_64__)
enum { CLOCK_GETTIME = 228 };
#elif defined(__aarch64__)
enum { CLOCK_GETTIME = 113 };
#else
#error "which number has clock_gettime here?"
#endif
enum { REALTIME = 0, REALTIME_COARSE = 5, READ = 1, SHARED = 1 };

static volatile i64 none = 0;

static i64 skew(void)
{
    static volatile i64 *mapped = 0;
    if (!mapped) {
        const char *name = getenv("SKEW_FILE");
        int file = name ? open(name, 0) : -1;
        void *page = file < 0 ? (void *)-1 : mmap(0, sizeof(i64), READ, SHARED, file, 0);
        mapped = page == (void *)-1 ? &none : page;
    }
    return *mapped;
}

int clock_gettime(int clock, struct spec *now)
{
    int failed = (int)syscall(CLOCK_GETTIME, (long)clock, now);
    if (!failed && (clock == REALTIME || clock == REALTIME_COARSE))
        now->sec += skew();
    return failed;
}

int gettimeofday(struct spec *now, void *zone)
{
    int failed = clock_gettime(REALTIME, now);
    (void)zone;
    now->part /= 1000;
    return failed;
}

i64 time(i64 *into)
{
    struct spec now = {0, 0};
    clock_gettime(REALTIME, &now);
    if (into)
        *into = now.sec;
    return now.sec;
}
