/* State out to a file: one walk over the pages, each read where it rests. */
#include "ckpt/ckpt.h"

#include "base/error.h"
#include "format/json.h"

static int write_piece(const spw_optim *optim, const spw__ckpt_table *table, uint64_t index,
                       const char *page, spw__checked_writer *writer)
{
    const spw__piece *piece = &optim->pieces[index];
    spw__parts parts = spw__ckpt_parts(optim, piece->param, piece->n);
    int rc = 0;
    for (int part = 0; rc == 0 && part < SPW__PARTS; part++)
        if (parts.bytes[part])
            rc = spw__checked_write(writer, spw__ckpt_tensor_of(table, piece->param, part),
                                    page + piece->offset + parts.at[part],
                                    (size_t)parts.bytes[part]);
    return rc;
}

static int write_pages(spw_optim *optim, const spw__ckpt_table *table, spw__checked_writer *writer)
{
    int rc = 0;
    for (uint64_t page = 0; rc == 0 && page < optim->n_pages; page++) {
        const char *bytes;
        rc = spw__pager_view(optim->pager, page, &bytes);
        for (uint64_t i = optim->page_first[page]; rc == 0 && i < optim->page_first[page + 1]; i++)
            rc = write_piece(optim, table, i, bytes, writer);
    }
    return rc;
}

static int save(spw_optim *optim, const spw__ckpt_table *table, const char *path)
{
    spw__checked_writer writer;
    json_t *metadata;
    int rc = spw__ckpt_metadata_make(optim, &metadata);
    if (rc < 0)
        return rc;
    rc = spw__checked_begin(&writer, path, table->specs, table->n, metadata);
    json_decref(metadata);
    if (rc < 0)
        return rc;
    rc = write_pages(optim, table, &writer);
    if (rc == 0)
        return spw__checked_commit(&writer);
    spw__checked_abandon(&writer);
    return rc;
}

static int check(const spw_optim *optim, const char *path)
{
    if (!optim || !path || !*path)
        return spw__error(SPW_EINVAL, "spw_optim_save: optim and path may not be NULL or empty");
    if (optim->torn)
        return spw__error(SPW_EFAILED,
                          "%s: a checkpoint was loaded in part: this state is none to "
                          "save",
                          path);
    return 0;
}

int spw_optim_save(spw_optim *optim, const char *path)
{
    spw__ckpt_table table = {.n = 0};
    int rc = check(optim, path);
    if (rc == 0)
        rc = spw__ckpt_table_make(optim, &table);
    if (rc == 0)
        rc = spw__optim_lay_out(optim);
    if (rc == 0)
        rc = spw__pager_prepare(optim->pager);
    if (rc == 0)
        rc = save(optim, &table, path);
    spw__ckpt_table_free(&table);
    return rc;
}
