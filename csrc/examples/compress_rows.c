/* Compresses rows of float32 on the CPU, reads some of them back, and meets damage. */
#include <ibp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 20000, kValues = 64, kIds = 5000, kThreads = 2 };

/* Ends the program where a call does not say what it is to say. */
static void Expect(ibp_status wanted, ibp_status got, const char* call) {
  if (wanted == got) return;
  fprintf(stderr, "%s: want status %d, got %d (%s)\n", call, (int)wanted, (int)got, ibp_error_message());
  exit(1);
}

static void* Room(int64_t bytes) {
  void* room = malloc((size_t)bytes);
  if (room == NULL) exit(2);
  return room;
}

int main(void) {
  /* Some values of a few exponents, as features have them. */
  float* rows = Room(sizeof(float) * kRows * kValues);
  uint32_t state = 1;
  for (int64_t i = 0; i < (int64_t)kRows * kValues; ++i) {
    state = state * 1664525u + 1013904223u;
    rows[i] = (float)(state >> 8) / 16777216.0f - 0.5f;
  }
  rows[77] = -0.0f;
  memset(rows + kValues * 100, 0x7f, sizeof(float) * kValues); /* NaNs with payloads */

  ibp_codec* codec = NULL;
  Expect(IBP_OK, ibp_codec_fit("auto", IBP_FLOAT32, kValues, rows, 4096, kRows, kThreads, &codec), "ibp_codec_fit");

  /* How long the buffers are, and then what is in them. */
  int32_t* payload_bytes = Room(sizeof(int32_t) * kRows);
  ibp_sizes sizes, bound;
  Expect(IBP_OK, ibp_measure(codec, rows, kRows, payload_bytes, kThreads), "ibp_measure");
  Expect(IBP_OK, ibp_size(codec, payload_bytes, kRows, 0, &sizes), "ibp_size");
  Expect(IBP_OK, ibp_bound(codec, kRows, sizes.slot_bytes, &bound), "ibp_bound");
  if (sizes.overflow_bytes > bound.overflow_bytes || sizes.slots_bytes != bound.slots_bytes) return 1;
  uint8_t* slots = Room(sizes.slots_bytes);
  uint8_t* bitmask = Room(sizes.bitmask_bytes);
  uint8_t* overflow = Room(sizes.overflow_bytes);
  void* workspace = Room(sizes.workspace_bytes);
  Expect(IBP_OK, ibp_compress(codec, rows, payload_bytes, &sizes, slots, bitmask, overflow, workspace, kThreads),
         "ibp_compress");
  free(workspace);

  /* The codec goes beside the rows, to wherever they are read. */
  size_t saved_bytes = ibp_codec_saved_bytes(codec);
  uint8_t* saved = Room((int64_t)saved_bytes);
  Expect(IBP_OK, ibp_codec_save(codec, saved, saved_bytes), "ibp_codec_save");
  ibp_codec* loaded = NULL;
  for (size_t i = 0; i < saved_bytes; ++i) { /* every changed byte is noticed */
    saved[i] ^= 1;
    Expect(IBP_DAMAGED, ibp_codec_load(saved, saved_bytes, &loaded), "ibp_codec_load");
    saved[i] ^= 1;
  }
  Expect(IBP_DAMAGED, ibp_codec_load(saved, saved_bytes - 1, &loaded), "ibp_codec_load");
  Expect(IBP_OK, ibp_codec_load(saved, saved_bytes, &loaded), "ibp_codec_load");
  printf("%s: %d rows of %d bytes in slots of %d, %d overflow: %.1f %% saved\n", ibp_codec_kind(loaded), kRows,
         (int)ibp_codec_row_bytes(loaded), (int)sizes.slot_bytes, (int)sizes.num_overflow,
         100.0 - 100.0 * (double)(sizes.slots_bytes + sizes.bitmask_bytes + sizes.overflow_bytes) /
                     (double)(sizeof(float) * kRows * kValues));

  /* Rows by number. */
  ibp_rows* compressed = NULL;
  Expect(IBP_OK, ibp_rows_make(loaded, &sizes, slots, bitmask, overflow, &compressed), "ibp_rows_make");
  int64_t* ids = Room(sizeof(int64_t) * kIds);
  float* out = Room(sizeof(float) * kIds * kValues);
  for (int i = 0; i < kIds; ++i) ids[i] = (int64_t)i * 7919 % kRows;
  ids[0] = 100;
  Expect(IBP_OK, ibp_gather(compressed, ids, kIds, out, 1), "ibp_gather");
  for (int i = 0; i < kIds; ++i) {
    if (memcmp(out + i * kValues, rows + ids[i] * kValues, sizeof(float) * kValues) != 0) {
      fprintf(stderr, "row %d differs\n", (int)ids[i]);
      return 1;
    }
  }
  float* all = Room(sizeof(float) * kRows * kValues);
  Expect(IBP_OK, ibp_decompress(compressed, all, kThreads), "ibp_decompress");
  if (memcmp(all, rows, sizeof(float) * kRows * kValues) != 0) return 1;

  /* What cannot be is said, and nothing else happens. */
  ids[3] = kRows;
  Expect(IBP_BAD_ID, ibp_gather(compressed, ids, kIds, out, 1), "ibp_gather of a bad id");
  printf("as it should: %s\n", ibp_error_message());
  ids[3] = 0;
  memset(slots, 0xff, (size_t)sizes.slots_bytes); /* payloads of escapes alone, and overflow indices to nowhere */
  ibp_status damaged = ibp_gather(compressed, ids, kIds, out, 1);
  Expect(IBP_DAMAGED, damaged, "ibp_gather of damaged slots");
  printf("as it should: %s\n", ibp_error_message());
  sizes.slots_bytes -= 1;
  ibp_rows* none = NULL;
  Expect(IBP_BAD_ARGUMENT, ibp_rows_make(loaded, &sizes, slots, bitmask, overflow, &none), "ibp_rows_make");

  ibp_rows_free(compressed);
  ibp_codec_free(loaded);
  ibp_codec_free(codec);
  free(rows), free(payload_bytes), free(slots), free(bitmask), free(overflow), free(saved), free(ids), free(out), free(all);
  return 0;
}
