//! FLAC files of ours, read by a library that shares no code with the writer.

use codecs::flac::FlacWriter;
use codecs::{AudioLimits, upload};

#[test]
fn a_streamed_file_gives_every_sample_back_and_says_where_it_came_from() {
    for (rate_hz, samples) in [(24_000_u32, 30_011_usize), (8_000, 320), (48_000, 1)] {
        let pcm: Vec<i16> =
            (0..samples).map(|at| ((at as f64 * 0.07).sin() * 20_000.0) as i16 - (at % 7) as i16).collect();
        let comments = [("COMMENT".to_owned(), "made here".to_owned())];
        let (mut writer, mut file) = FlacWriter::new(rate_hz, &comments).expect("a rate");
        assert!(file.starts_with(b"fLaC") && file.windows(9).any(|bytes| bytes == b"made here"));
        let bytes: Vec<u8> = pcm.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        for piece in bytes.chunks(962) {
            writer.write(piece, &mut file).expect("written");
        }
        writer.finish(&mut file).expect("written");
        assert!(samples < 1_000 || file.len() < bytes.len(), "it is smaller than it was");
        if samples >= 320 {
            let read = upload::read(&file, &AudioLimits::default()).expect("FLAC");
            assert_eq!((read.rate_hz, read.samples.len()), (rate_hz, samples));
            for (read, wrote) in read.samples.iter().zip(&pcm) {
                assert_eq!((read * 32_768.0).round() as i16, *wrote);
            }
        }
    }
}
