/* A sharded model's index: whatever it says, only plain names in its own folder are opened. */
#include "fuzz.h"

#include "train/shards.h"

#include <string.h>

static void put_shard(const char *name)
{
    static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    char bytes[8 + sizeof header] = {sizeof header - 1};
    memcpy(bytes + 8, header, sizeof header); /* its last one, 0, is the data */
    (void)fuzz_put(name, bytes, sizeof bytes);
}

int fuzz_read(const uint8_t *data, size_t bytes)
{
    spw__shards shards;
    put_shard("a.safetensors");
    put_shard("b.safetensors");
    (void)fuzz_put("model.safetensors.index.json", data, bytes);
    int rc = spw__shards_open(fuzz_folder(), &shards);
    if (rc == 0)
        spw__shards_close(&shards);
    return rc;
}
