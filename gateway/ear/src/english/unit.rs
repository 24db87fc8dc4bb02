//! Units of measure.

use std::borrow::Cow;

use super::Form;

/// Symbol, singular, plural, and whether a space may stand before it: a letter that is a word too may not.
type Unit = (&'static str, &'static str, &'static str, bool);

const UNITS: &[Unit] = &[
    ("%", "percent", "percent", true),
    ("\u{2030}", "per mille", "per mille", true),
    ("\u{B0}C", "degree Celsius", "degrees Celsius", true),
    ("\u{2103}", "degree Celsius", "degrees Celsius", true),
    ("\u{B0}F", "degree Fahrenheit", "degrees Fahrenheit", true),
    ("\u{2109}", "degree Fahrenheit", "degrees Fahrenheit", true),
    ("\u{B0}", "degree", "degrees", false),
    ("km/h", "kilometer per hour", "kilometers per hour", true),
    ("kph", "kilometer per hour", "kilometers per hour", true),
    ("mph", "mile per hour", "miles per hour", true),
    ("m/s", "meter per second", "meters per second", true),
    ("km", "kilometer", "kilometers", true),
    ("cm", "centimeter", "centimeters", true),
    ("mm", "millimeter", "millimeters", true),
    ("nm", "nanometer", "nanometers", true),
    ("\u{B5}m", "micrometer", "micrometers", true),
    ("m", "meter", "meters", true),
    ("km\u{B2}", "square kilometer", "square kilometers", true),
    ("m\u{B2}", "square meter", "square meters", true),
    ("m\u{B3}", "cubic meter", "cubic meters", true),
    ("mi", "mile", "miles", true),
    ("ft", "foot", "feet", true),
    ("yd", "yard", "yards", true),
    ("in", "inch", "inches", false),
    ("kg", "kilogram", "kilograms", true),
    ("mg", "milligram", "milligrams", true),
    ("\u{B5}g", "microgram", "micrograms", true),
    ("g", "gram", "grams", true),
    ("lb", "pound", "pounds", true),
    ("lbs", "pound", "pounds", true),
    ("oz", "ounce", "ounces", true),
    ("ml", "milliliter", "milliliters", true),
    ("mL", "milliliter", "milliliters", true),
    ("l", "liter", "liters", true),
    ("L", "liter", "liters", true),
    ("gal", "gallon", "gallons", true),
    ("Hz", "hertz", "hertz", true),
    ("kHz", "kilohertz", "kilohertz", true),
    ("MHz", "megahertz", "megahertz", true),
    ("GHz", "gigahertz", "gigahertz", true),
    ("KB", "kilobyte", "kilobytes", true),
    ("kB", "kilobyte", "kilobytes", true),
    ("MB", "megabyte", "megabytes", true),
    ("GB", "gigabyte", "gigabytes", true),
    ("TB", "terabyte", "terabytes", true),
    ("PB", "petabyte", "petabytes", true),
    ("KiB", "kibibyte", "kibibytes", true),
    ("MiB", "mebibyte", "mebibytes", true),
    ("GiB", "gibibyte", "gibibytes", true),
    ("kbps", "kilobit per second", "kilobits per second", true),
    ("Mbps", "megabit per second", "megabits per second", true),
    ("Gbps", "gigabit per second", "gigabits per second", true),
    ("ms", "millisecond", "milliseconds", true),
    ("\u{B5}s", "microsecond", "microseconds", true),
    ("us", "microsecond", "microseconds", false),
    ("ns", "nanosecond", "nanoseconds", true),
    ("s", "second", "seconds", true),
    ("sec", "second", "seconds", true),
    ("min", "minute", "minutes", true),
    ("mins", "minute", "minutes", true),
    ("h", "hour", "hours", true),
    ("hr", "hour", "hours", true),
    ("hrs", "hour", "hours", true),
    ("V", "volt", "volts", true),
    ("kV", "kilovolt", "kilovolts", true),
    ("mA", "milliamp", "milliamps", true),
    ("mAh", "milliamp hour", "milliamp hours", true),
    ("W", "watt", "watts", true),
    ("kW", "kilowatt", "kilowatts", true),
    ("MW", "megawatt", "megawatts", true),
    ("GW", "gigawatt", "gigawatts", true),
    ("kWh", "kilowatt hour", "kilowatt hours", true),
    ("dB", "decibel", "decibels", true),
    ("kcal", "kilocalorie", "kilocalories", true),
    ("px", "pixel", "pixels", true),
    ("fps", "frame per second", "frames per second", true),
    ("rpm", "revolution per minute", "revolutions per minute", true),
];

/// A unit in words. `spaced`: it stands in a word of its own.
pub(super) fn unit(symbol: &str, one: bool, spaced: bool, form: Form) -> Option<Cow<'static, str>> {
    let found = UNITS
        .iter()
        .find(|(known, _, _, may_stand_apart)| *known == symbol && (*may_stand_apart || !spaced))?;
    let said = if one { found.1 } else { found.2 };
    Some(match form {
        Form::American => Cow::Borrowed(said),
        Form::British => Cow::Owned(said.replace("meter", "metre").replace("liter", "litre")),
    })
}

/// Units whose abbreviation may carry a dot.
pub(super) fn takes_dot(symbol: &str) -> bool {
    matches!(
        symbol,
        "ft" | "in" | "lb" | "lbs" | "oz" | "gal" | "mi" | "yd" | "min" | "mins" | "sec" | "hr" | "hrs"
    )
}
