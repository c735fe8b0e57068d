/* Checkpoints of an optimizer: out and in again, the same bits, and what is refused. */
#include "ckpt/rig.h"

#include "base/file.h"
#include "dev/dev.h"
#include "store/store.h"

#include <dirent.h>

static char folder[] = "/tmp/spw-test-ckpt-XXXXXX";
static char path[64], other_path[64];

static int make_folder(void **unused)
{
    (void)unused;
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/optim.safetensors", folder);
    (void)snprintf(other_path, sizeof other_path, "%s/other.safetensors", folder);
    return 0;
}

static int remove_folder(void **unused)
{
    (void)unused;
    (void)unlink(path);
    (void)unlink(other_path);
    return rmdir(folder);
}

static int files_in_folder(void)
{
    int n = 0;
    DIR *open_folder = opendir(folder);
    assert_non_null(open_folder);
    for (struct dirent *entry; (entry = readdir(open_folder));)
        n += entry->d_name[0] != '.';
    (void)closedir(open_folder);
    return n;
}

static void read_file(const char *name, char **data, size_t *bytes)
{
    assert_int_equal(spw__file_read(name, 1 << 30, data, bytes), 0);
}

static void write_file(const char *name, const char *data, size_t bytes)
{
    assert_int_equal(spw__file_put(name, data, bytes), 0);
}

static void assert_says(const char *words)
{
    if (!strstr(spw_last_error(), words))
        fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), words);
}

/* -------------------------------------------------------------------------------- out and in -- */

/* Ways to hold state: i picks budget, store, way to move and page size. */
static setup varied_setup(spw_state state, int i, char *store, size_t room)
{
    static const double percents[] = {0, 25, 50, 100};
    setup s = plain_setup(state);
    s.mem = i % 3 ? 4 << 20 : 0;
    s.pager.paging = i % 8 == 7 ? SPW_PAGING_MAPPED : i % 8 == 6 ? SPW_PAGING_OFF : SPW_PAGING_COPY;
    s.pager.state_percent = percents[i / 2 % 4];
    s.pager.page_bytes = UINT64_C(65536) << (i % 3);
    (void)snprintf(store, room, "file:%s/store-%d", folder, i);
    s.pager.store = i % 5 == 1 && s.pager.paging == SPW_PAGING_COPY ? store : "ram";
    s.backwards = i % 4 == 3;
    return s;
}

static void check_resume(spw_state state, int way_out, int way_in)
{
    char store_out[64], store_in[64];
    setup out = varied_setup(state, way_out, store_out, sizeof store_out);
    setup in = varied_setup(state, way_in, store_in, sizeof store_in);
    rig never_stopped, resumed;
    rig_open(&never_stopped, &out);
    rig_steps(&never_stopped, 0, 4);
    assert_int_equal(spw_optim_save(never_stopped.optim, path), 0);
    rig_open(&resumed, &in);
    rig_take_parameters(&resumed, &never_stopped);
    assert_int_equal(spw_optim_load(resumed.optim, path), 0);
    assert_same_state(&never_stopped, &resumed);
    rig_steps(&never_stopped, 4, 8);
    rig_steps(&resumed, 4, 8);
    assert_same_state(&never_stopped, &resumed);
    rig_close(&never_stopped);
    rig_close(&resumed);
}

static void a_resumed_run_has_the_bits_of_one_that_never_stopped(void **unused)
{
    (void)unused;
    for (int i = 0; i < 16; i++) {
        check_resume(SPW_STATE_32BIT, i, i * 5 % 16);
        check_resume(SPW_STATE_8BIT, i, i * 11 % 16);
    }
}

static void the_file_does_not_depend_on_what_was_paged(void **unused)
{
    (void)unused;
    char *first = NULL, *data, store[64];
    size_t bytes, n;
    for (int i = 0; i < 8; i++) {
        setup s = varied_setup(SPW_STATE_8BIT, i, store, sizeof store);
        s.backwards = false;
        rig r;
        rig_open(&r, &s);
        rig_steps(&r, 0, 3);
        assert_int_equal(spw_optim_save(r.optim, path), 0);
        rig_close(&r);
        read_file(path, &data, &n);
        if (first) {
            assert_int_equal(n, bytes);
            assert_memory_equal(data, first, n);
            free(data);
        } else {
            first = data;
            bytes = n;
        }
    }
    free(first);
}

static void a_load_moves_no_state_to_the_device(void **unused)
{
    (void)unused;
    setup s = plain_setup(SPW_STATE_32BIT);
    s.mem = 3 << 20; /* less than parameters, gradients and state */
    s.pager.page_bytes = 65536;
    s.pager.state_percent = 100;
    rig r;
    rig_open(&r, &s);
    rig_steps(&r, 0, 2);
    assert_int_equal(spw_optim_save(r.optim, path), 0);
    rig_close(&r);
    rig_open(&r, &s);
    spw_device_stats before, device;
    assert_int_equal(spw_device_stats_get(r.device, &before), 0);
    assert_int_equal(spw_optim_load(r.optim, path), 0);
    spw_pager_stats stats;
    assert_int_equal(spw_pager_stats_get(r.pager, &stats), 0);
    assert_int_equal(stats.resident_bytes, 0);
    assert_int_equal(spw_device_stats_get(r.device, &device), 0);
    assert_true(device.peak_bytes + stats.state_bytes > s.mem);
    assert_int_equal(device.frame_bytes, stats.ring_bytes);
    assert_int_equal(device.peak_bytes, before.in_use_bytes + stats.ring_bytes);
    rig_close(&r);
}

/* A run that goes back: state in the store and on the device is replaced. */
static void a_load_between_steps_takes_back_what_came_after(void **unused)
{
    (void)unused;
    setup s = plain_setup(SPW_STATE_8BIT);
    s.mem = 3 << 20;
    s.pager.page_bytes = 65536;
    s.pager.state_percent = 50;
    rig a, b;
    rig_open(&a, &s);
    rig_open(&b, &s);
    rig_steps(&a, 0, 3);
    rig_steps(&b, 0, 3);
    assert_int_equal(spw_optim_save(a.optim, path), 0);
    rig_steps(&b, 3, 6);
    rig_take_parameters(&b, &a);
    assert_int_equal(spw_optim_load(b.optim, path), 0);
    assert_same_state(&a, &b);
    rig_steps(&a, 3, 5);
    rig_steps(&b, 3, 5);
    assert_same_state(&a, &b);
    rig_close(&a);
    rig_close(&b);
}

static void state_that_was_never_written_is_saved_as_zeros(void **unused)
{
    (void)unused;
    for (int i = 0; i < 8; i++) {
        char store[64];
        setup s = varied_setup(SPW_STATE_32BIT, i, store, sizeof store);
        rig fresh, loaded;
        rig_open(&fresh, &s);
        assert_int_equal(spw_optim_save(fresh.optim, path), 0);
        setup plain = plain_setup(SPW_STATE_32BIT);
        rig_open(&loaded, &plain);
        rig_steps(&loaded, 0, 1);
        rig_take_parameters(&loaded, &fresh);
        assert_int_equal(spw_optim_load(loaded.optim, path), 0);
        assert_same_state(&fresh, &loaded);
        rig_close(&fresh);
        rig_close(&loaded);
    }
}

/* A device whose copies fail shows who asks it: only the pages that the store has not. */
static void what_the_store_has_is_not_read_from_the_device(void **unused)
{
    (void)unused;
    for (int percent = 0; percent <= 100; percent += 100) {
        setup s = plain_setup(SPW_STATE_32BIT);
        s.pager.paging = SPW_PAGING_COPY;
        s.pager.state_percent = percent;
        s.pager.page_bytes = 65536;
        rig r;
        rig_open(&r, &s);
        rig_steps(&r, 0, 3);
        spw__dev_fail_copy(1);
        int rc = spw_optim_save(r.optim, path);
        spw__dev_fail_copy(0);
        assert_int_equal(rc, percent ? SPW_EIO : 0);
        rig_close(&r);
    }
}

/* Kilobytes of a line of /proc/self/status. */
static long status_kib(const char *key)
{
    char line[128];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtol(line + strlen(key), NULL, 10);
    if (file)
        (void)fclose(file);
    return kib;
}

static bool forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");
    bool done = file && fputs("5", file) > 0;
    return file && fclose(file) == 0 && done;
}

static spw_optim *large_optim(spw_device *device, const char *store, spw_pager **pager, float *data)
{
    spw_optim *optim;
    spw_pager_config config;
    spw_pager_config_default(&config);
    config.store = store;
    config.page_bytes = 1 << 20;
    config.state_percent = 0;
    assert_int_equal(spw_pager_create(device, &config, pager), 0);
    assert_int_equal(spw_optim_create(*pager, NULL, &optim), 0);
    spw_param param = {.name = "w", .data = data, .grad = data, .n = 8 << 20, .bits = 32};
    assert_int_equal(spw_optim_add(optim, &param), 0);
    return optim;
}

/* 64 MiB of state in a file: out and in again, and the process grows by no more than some pages. */
static void saving_and_loading_take_a_page_of_memory(void **unused)
{
    (void)unused;
    char store[64];
    float *data = calloc(8 << 20, sizeof *data);
    (void)snprintf(store, sizeof store, "file:%s/store", folder);
    for (size_t i = 0; i < 8 << 20; i++)
        data[i] = (float)(i % 1000);
    spw_device *device;
    spw_pager *pager;
    assert_int_equal(spw_device_open("cpu", NULL, &device), 0);
    for (int loads = 0; loads < 2; loads++) {
        spw_optim *optim = large_optim(device, store, &pager, data);
        assert_int_equal(spw_optim_step(optim, &(spw_step){.lr = 0}), 0);
        long before = status_kib("VmRSS:");
        if (before < 0 || !forget_peak())
            skip();
        int rc = loads ? spw_optim_load(optim, path) : spw_optim_save(optim, path);
        assert_int_equal(rc, 0);
        long grown = status_kib("VmHWM:") - before;
        if (grown > 8 << 10)
            fail_msg("%s grew the process by %ld KiB", loads ? "loading" : "saving", grown);
        spw_optim_destroy(optim);
        spw_pager_destroy(pager);
    }
    spw_device_close(device);
    free(data);
}

/* ------------------------------------------------------------------------------------ faults -- */

/* Every create, write, sync and rename fails once: the old file stays, or the new one is whole. */
static void a_save_that_fails_leaves_the_old_file_and_nothing_else(void **unused)
{
    (void)unused;
    setup s = plain_setup(SPW_STATE_8BIT);
    s.pager.page_bytes = 65536;
    rig r;
    rig_open(&r, &s);
    rig_steps(&r, 0, 1);
    assert_int_equal(spw_optim_save(r.optim, path), 0);
    char *old, *new, *now;
    size_t old_bytes, new_bytes, now_bytes;
    read_file(path, &old, &old_bytes);
    rig_steps(&r, 1, 2);
    assert_int_equal(spw_optim_save(r.optim, other_path), 0);
    read_file(other_path, &new, &new_bytes);
    assert_memory_not_equal(old, new, new_bytes);
    uint64_t nth = 0;
    for (bool saved = false; !saved;) {
        spw__file_fail(++nth);
        int rc = spw_optim_save(r.optim, path);
        spw__file_fail(0);
        saved = rc == 0;
        assert_true(saved || rc == SPW_EIO);
        assert_int_equal(files_in_folder(), 2);
        read_file(path, &now, &now_bytes);
        bool is_new = now_bytes == new_bytes && memcmp(now, new, new_bytes) == 0;
        assert_true(is_new || (now_bytes == old_bytes && memcmp(now, old, old_bytes) == 0));
        assert_true(is_new || !saved);
        free(now);
    }
    assert_true(nth > 20);
    free(old);
    free(new);
    rig_close(&r);
}

static void a_store_that_fails_is_told_and_the_next_save_is_whole(void **unused)
{
    (void)unused;
    char store[64];
    setup s = plain_setup(SPW_STATE_32BIT);
    (void)snprintf(store, sizeof store, "file:%s/store", folder);
    s.pager.store = store;
    s.pager.state_percent = 0;
    s.pager.page_bytes = 65536;
    rig r;
    rig_open(&r, &s);
    rig_steps(&r, 0, 2);
    (void)unlink(path);
    int rc = SPW_EIO;
    for (uint64_t nth = 1; rc < 0; nth++) {
        int before = files_in_folder();
        spw__store_fail_read(nth);
        rc = spw_optim_save(r.optim, path);
        spw__store_fail_read(0);
        assert_true(rc == 0 || rc == SPW_EIO);
        if (rc < 0)
            assert_int_equal(files_in_folder(), before);
        assert_true(rc < 0 || nth > 3);
    }
    rig again;
    setup plain = plain_setup(SPW_STATE_32BIT);
    rig_open(&again, &plain);
    rig_take_parameters(&again, &r);
    assert_int_equal(spw_optim_load(again.optim, path), 0);
    assert_same_state(&r, &again);
    rig_close(&again);
    rig_close(&r);
}

/* What was read in part is no state: no step, no save, until a load succeeds. */
static void a_load_that_breaks_off_is_refused_until_one_succeeds(void **unused)
{
    (void)unused;
    char store[64];
    setup plain = plain_setup(SPW_STATE_32BIT), s = plain;
    rig source, r;
    rig_open(&source, &plain);
    rig_steps(&source, 0, 2);
    assert_int_equal(spw_optim_save(source.optim, path), 0);
    (void)snprintf(store, sizeof store, "file:%s/store", folder);
    s.pager.store = store;
    s.pager.page_bytes = 65536;
    rig_open(&r, &s);
    rig_take_parameters(&r, &source);
    int rc = SPW_EIO;
    for (uint64_t nth = 1; rc < 0; nth++) {
        spw__store_fail_write(nth);
        rc = spw_optim_load(r.optim, path);
        spw__store_fail_write(0);
        assert_true(rc == 0 || rc == SPW_EIO);
        if (rc < 0) {
            assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 1}), SPW_EFAILED);
            assert_int_equal(spw_optim_save(r.optim, other_path), SPW_EFAILED);
        }
        assert_true(rc < 0 || nth > 3);
    }
    assert_same_state(&source, &r);
    rig_steps(&source, 2, 4);
    rig_steps(&r, 2, 4);
    assert_same_state(&source, &r);
    rig_close(&source);
    rig_close(&r);
}

/* ----------------------------------------------------------------------------- damaged files -- */

/* A small optimizer, so that every byte of its file can be tried. */
typedef struct small {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    float p[300], g[300];
} small;

static void small_open(small *s, const char *name, uint64_t n, uint32_t bits)
{
    memset(s, 0, sizeof *s);
    assert_int_equal(spw_device_open("cpu", NULL, &s->device), 0);
    assert_int_equal(spw_pager_create(s->device, NULL, &s->pager), 0);
    assert_int_equal(spw_optim_create(s->pager, NULL, &s->optim), 0);
    spw_param param = {.name = name, .data = s->p, .grad = s->g, .n = n, .bits = bits};
    assert_int_equal(spw_optim_add(s->optim, &param), 0);
    for (int i = 0; i < 300; i++)
        s->g[i] = (float)i - 100.5f;
}

static void small_close(small *s)
{
    spw_optim_destroy(s->optim);
    spw_pager_destroy(s->pager);
    spw_device_close(s->device);
}

/* A file of tensor "w", 300 elements of 8-bit state, after a step. */
static void small_file(char **data, size_t *bytes)
{
    small s;
    small_open(&s, "w", 300, 8);
    assert_int_equal(spw_optim_step(s.optim, &(spw_step){.lr = 0.5}), 0);
    assert_int_equal(spw_optim_save(s.optim, path), 0);
    small_close(&s);
    read_file(path, data, bytes);
}

/* Put there again, without the syncs that would make thousands of tries slow. */
static void replace(const char *data, size_t bytes)
{
    FILE *file = fopen(other_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void assert_refused(small *s, const char *what, size_t at)
{
    uint64_t step = 7;
    int rc = spw_optim_load(s->optim, other_path);
    if (rc != SPW_EFORMAT && rc != SPW_ENOTSUP)
        fail_msg("%s at %zu: rc %d, %s", what, at, rc, spw_last_error());
    assert_says(other_path);
    assert_null(strchr(spw_last_error(), '\n'));
    assert_int_equal(spw_optim_get_step(s->optim, 0, &step), 0);
    assert_int_equal(step, 3);
}

static void every_flipped_byte_is_noticed_and_changes_nothing(void **unused)
{
    (void)unused;
    char *data, *before, *after;
    size_t bytes;
    small_file(&data, &bytes);
    small s;
    small_open(&s, "w", 300, 8);
    for (int i = 0; i < 3; i++)
        assert_int_equal(spw_optim_step(s.optim, &(spw_step){.lr = 0.5}), 0);
    before = malloc(300);
    after = malloc(300);
    assert_int_equal(spw_optim_get_part(s.optim, 0, SPW_PART_M, before, 300), 0);
    for (size_t i = 0; i < bytes; i++) {
        char kept = data[i];
        data[i] = (char)(kept ^ (1 << i % 8));
        replace(data, bytes);
        assert_refused(&s, "a flip", i);
        data[i] = kept;
    }
    assert_int_equal(spw_optim_get_part(s.optim, 0, SPW_PART_M, after, 300), 0);
    assert_memory_equal(before, after, 300);
    replace(data, bytes);
    assert_int_equal(spw_optim_load(s.optim, other_path), 0);
    small_close(&s);
    free(before);
    free(after);
    free(data);
}

static void a_file_cut_anywhere_is_noticed(void **unused)
{
    (void)unused;
    char *data;
    size_t bytes;
    small_file(&data, &bytes);
    small s;
    small_open(&s, "w", 300, 8);
    for (int i = 0; i < 3; i++)
        assert_int_equal(spw_optim_step(s.optim, &(spw_step){.lr = 0.5}), 0);
    for (size_t n = 0; n < bytes; n++) {
        replace(data, n);
        assert_refused(&s, "a cut", n);
    }
    char *longer = calloc(bytes + 1, 1);
    memcpy(longer, data, bytes);
    replace(longer, bytes + 1);
    assert_refused(&s, "a byte more", bytes);
    free(longer);
    small_close(&s);
    free(data);
}

static void damage_is_named_by_tensor_and_bytes(void **unused)
{
    (void)unused;
    char *data;
    size_t bytes;
    small_file(&data, &bytes);
    small s;
    small_open(&s, "w", 300, 8);
    data[bytes - 1] ^= 4; /* codes come last: of v */
    replace(data, bytes);
    assert_int_equal(spw_optim_load(s.optim, other_path), SPW_EFORMAT);
    assert_says("tensor w.v, bytes ");
    assert_says("damaged: its checksum is ");
    small_close(&s);
    free(data);
}

static void files_of_another_kind_are_named(void **unused)
{
    (void)unused;
    static const char foreign[] =
        "\x40\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
        "              abcd";
    small s;
    small_open(&s, "w", 300, 8);
    (void)unlink(other_path);
    assert_int_equal(spw_optim_load(s.optim, other_path), SPW_ENOENT);
    write_file(other_path, foreign, 8 + 64 + 4);
    assert_int_equal(spw_optim_load(s.optim, other_path), SPW_EFORMAT);
    assert_says("not written by spillway");
    assert_int_equal(spw_optim_load(s.optim, folder), SPW_EINVAL);
    assert_says("not a regular file");
    small_close(&s);
}

/* ----------------------------------------------------------------------- others' parameters -- */

static int load_small_file_into(const char *name, uint64_t n, uint32_t bits)
{
    small s;
    small_open(&s, name, n, bits);
    int rc = spw_optim_load(s.optim, path);
    small_close(&s);
    return rc;
}

static void a_file_of_other_parameters_is_refused_by_name(void **unused)
{
    (void)unused;
    char *data;
    size_t bytes;
    small_file(&data, &bytes);
    free(data);
    assert_int_equal(load_small_file_into("w", 300, 8), 0);
    assert_int_equal(load_small_file_into("other", 300, 8), SPW_EINVAL);
    assert_says("has no parameter other");
    assert_int_equal(load_small_file_into("w", 299, 8), SPW_EINVAL);
    assert_says("tensor w.m");
    assert_says("300 elements, here it has 299");
    assert_int_equal(load_small_file_into("w", 300, 32), SPW_EINVAL);
    assert_says("tensor w.m");
    assert_says("is U8, here it is F32");
}

static void a_file_with_more_parameters_is_refused_by_name(void **unused)
{
    (void)unused;
    small s;
    small_open(&s, "w", 300, 8);
    spw_param more = {.name = "more", .data = s.p, .grad = s.g, .n = 4, .bits = 8};
    assert_int_equal(spw_optim_add(s.optim, &more), 1);
    assert_int_equal(spw_optim_save(s.optim, path), 0);
    small_close(&s);
    assert_int_equal(load_small_file_into("w", 300, 8), SPW_EINVAL);
    assert_says("has 2 parameters, this optimizer has 1; more is not among them");
}

static int save_with_names(const char *first, const char *second)
{
    small s;
    small_open(&s, first, 4, 32);
    spw_param param = {.name = second, .data = s.p, .grad = s.g, .n = 4};
    assert_int_equal(spw_optim_add(s.optim, &param), 1);
    int rc = spw_optim_save(s.optim, other_path);
    small_close(&s);
    return rc;
}

static void names_that_are_no_keys_are_refused(void **unused)
{
    (void)unused;
    (void)unlink(other_path);
    assert_int_equal(save_with_names("a", "a"), SPW_EINVAL);
    assert_says("two parameters have the name a");
    assert_int_equal(save_with_names("a", ""), SPW_EINVAL);
    assert_says("parameter 1 has no name");
    assert_int_equal(save_with_names("\xff\xfe", "a"), SPW_EINVAL);
    assert_says("not UTF-8");
    assert_int_equal(access(other_path, F_OK), -1);
    assert_int_equal(save_with_names("a", "a.m"), 0);
    assert_int_equal(save_with_names("a \"quoted\"\n\\ name", "\xc3\xa9t\xc3\xa9"), 0);
}

static void bad_arguments_and_places_are_refused(void **unused)
{
    (void)unused;
    small s;
    small_open(&s, "w", 300, 8);
    assert_int_equal(spw_optim_save(NULL, path), SPW_EINVAL);
    assert_int_equal(spw_optim_save(s.optim, ""), SPW_EINVAL);
    assert_int_equal(spw_optim_load(s.optim, NULL), SPW_EINVAL);
    char nowhere[128];
    (void)snprintf(nowhere, sizeof nowhere, "%s/none/optim.safetensors", folder);
    assert_int_equal(spw_optim_save(s.optim, nowhere), SPW_ENOENT);
    assert_says(nowhere);
    small_close(&s);
}

static void an_optimizer_without_parameters_has_a_file_too(void **unused)
{
    (void)unused;
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    assert_int_equal(spw_device_open("cpu", NULL, &device), 0);
    assert_int_equal(spw_pager_create(device, NULL, &pager), 0);
    assert_int_equal(spw_optim_create(pager, NULL, &optim), 0);
    assert_int_equal(spw_optim_save(optim, path), 0);
    assert_int_equal(spw_optim_load(optim, path), 0);
    spw_optim_destroy(optim);
    spw_pager_destroy(pager);
    spw_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_has_the_bits_of_one_that_never_stopped),
        cmocka_unit_test(the_file_does_not_depend_on_what_was_paged),
        cmocka_unit_test(a_load_moves_no_state_to_the_device),
        cmocka_unit_test(a_load_between_steps_takes_back_what_came_after),
        cmocka_unit_test(state_that_was_never_written_is_saved_as_zeros),
        cmocka_unit_test(what_the_store_has_is_not_read_from_the_device),
        cmocka_unit_test(saving_and_loading_take_a_page_of_memory),
        cmocka_unit_test(a_save_that_fails_leaves_the_old_file_and_nothing_else),
        cmocka_unit_test(a_store_that_fails_is_told_and_the_next_save_is_whole),
        cmocka_unit_test(a_load_that_breaks_off_is_refused_until_one_succeeds),
        cmocka_unit_test(every_flipped_byte_is_noticed_and_changes_nothing),
        cmocka_unit_test(a_file_cut_anywhere_is_noticed),
        cmocka_unit_test(damage_is_named_by_tensor_and_bytes),
        cmocka_unit_test(files_of_another_kind_are_named),
        cmocka_unit_test(a_file_of_other_parameters_is_refused_by_name),
        cmocka_unit_test(a_file_with_more_parameters_is_refused_by_name),
        cmocka_unit_test(names_that_are_no_keys_are_refused),
        cmocka_unit_test(bad_arguments_and_places_are_refused),
        cmocka_unit_test(an_optimizer_without_parameters_has_a_file_too),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
