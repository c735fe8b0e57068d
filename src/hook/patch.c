/*
 * Import slots of libraries that are loaded: found in their dynamic sections, pointed to the twins.
 *
 * A library that was linked with full RELRO keeps its slots in memory that is read-only; the page
 * is made writable for the moment and read-only again.
 */
#include "hook/calls.h"

#include <spillway/spillway.h>

#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { JUMP_SLOT = R_X86_64_JUMP_SLOT, GLOB_DAT = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { JUMP_SLOT = R_AARCH64_JUMP_SLOT, GLOB_DAT = R_AARCH64_GLOB_DAT };
#else
enum { JUMP_SLOT = -1, GLOB_DAT = -1 }; /* nothing is found */
#endif

typedef struct module {
    ElfW(Addr) base;
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Rela) * tables[2]; /* of calls, of addresses */
    size_t bytes[2];
    const ElfW(Phdr) * relro; /* NULL: none */
} module;

static void read_dynamic(module *m, const ElfW(Dyn) * entry)
{
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            m->symbols = (const void *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_STRTAB)
            m->strings = (const void *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_JMPREL)
            m->tables[0] = (const void *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_PLTRELSZ)
            m->bytes[0] = entry->d_un.d_val;
        else if (entry->d_tag == DT_RELA)
            m->tables[1] = (const void *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_RELASZ)
            m->bytes[1] = entry->d_un.d_val;
    }
}

static module read_module(const struct dl_phdr_info *info)
{
    module m = {.base = info->dlpi_addr};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_DYNAMIC)
            read_dynamic(&m, (const void *)(m.base + header->p_vaddr));
        else if (header->p_type == PT_GNU_RELRO)
            m.relro = header;
    }
    return m;
}

static bool is_read_only(const module *m, const void *slot)
{
    ElfW(Addr) at = (ElfW(Addr))slot - m->base;
    return m->relro && at >= m->relro->p_vaddr && at < m->relro->p_vaddr + m->relro->p_memsz;
}

static bool write_slot(const module *m, void **slot, void *twin)
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)slot & ~(page_bytes - 1));
    bool read_only = is_read_only(m, slot);
    if (read_only && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0)
        return false;
    __atomic_store_n(slot, twin, __ATOMIC_RELEASE);
    if (read_only)
        (void)mprotect(page, page_bytes, PROT_READ);
    return true;
}

static size_t patch_table(const module *m, int which)
{
    size_t patched = 0;
    const ElfW(Rela) *table = m->tables[which];
    for (size_t i = 0; table && i < m->bytes[which] / sizeof *table; i++) {
        int type = (int)ELF64_R_TYPE(table[i].r_info);
        if (type != JUMP_SLOT && type != GLOB_DAT)
            continue;
        const char *name = m->strings + m->symbols[ELF64_R_SYM(table[i].r_info)].st_name;
        void *twin = spw__hook_twin(name);
        if (twin)
            patched += write_slot(m, (void **)(m->base + table[i].r_offset), twin);
    }
    return patched;
}

/* The runtime's own slots stay, and ours. */
static bool is_left_alone(const char *name)
{
    return strstr(name, "libcudart.so") || strstr(name, "libspillway") ||
           strstr(name, "libcuda.so");
}

static int patch_module(struct dl_phdr_info *info, size_t size, void *patched)
{
    (void)size;
    if (is_left_alone(info->dlpi_name))
        return 0;
    module m = read_module(info);
    if (m.symbols && m.strings)
        *(size_t *)patched += patch_table(&m, 0) + patch_table(&m, 1);
    return 0;
}

size_t spw__hook_patch(void)
{
    size_t patched = 0;
    (void)dl_iterate_phdr(patch_module, &patched);
    return patched;
}

/* ---------------------------------------------------------------------------------- install -- */

/* Whether anybody in this process has a primary context already. */
static bool cuda_was_used(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CUresult (*init)(unsigned), (*count)(int *), (*state)(CUdevice, unsigned *, int *);
    void *symbols[] = {driver ? dlsym(driver, "cuInit") : NULL,
                       driver ? dlsym(driver, "cuDeviceGetCount") : NULL,
                       driver ? dlsym(driver, "cuDevicePrimaryCtxGetState") : NULL};
    if (!symbols[0] || !symbols[1] || !symbols[2])
        return false;
    memcpy(&init, &symbols[0], sizeof init);
    memcpy(&count, &symbols[1], sizeof count);
    memcpy(&state, &symbols[2], sizeof state);
    int n = 0, active = 0;
    unsigned flags;
    if (init(0) != CUDA_SUCCESS || count(&n) != CUDA_SUCCESS)
        return false;
    for (int i = 0; i < n && !active; i++)
        if (state(i, &flags, &active) != CUDA_SUCCESS)
            active = 0;
    return active;
}

static bool is_preloaded(void)
{
    const char *names = getenv("LD_PRELOAD");
    return names && strstr(names, "libspillway_hook.so");
}

__attribute__((visibility("default"))) int spw_hook_install(void)
{
    bool early = !cuda_was_used();
    int reach = 0;
    if (!spw__hook_find_real())
        return 0;
    if (spw__hook_patch() > 0)
        reach = SPW_HOOK_RUNTIME | (early ? SPW_HOOK_EXPANDABLE : 0);
    if (is_preloaded())
        reach |= SPW_HOOK_RUNTIME | SPW_HOOK_EXPANDABLE | SPW_HOOK_PRELOADED;
    return reach;
}
